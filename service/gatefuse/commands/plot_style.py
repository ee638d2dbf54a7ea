"""How every picture of ours looks. No matplotlib here: a style is a dictionary."""

from typing import Any

# Told apart in print and by colour-blind readers: the first of Okabe and Ito's set.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK = "#333a45"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa3b0",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.5,
    "grid.color": "#e4e7ec",
    "legend.frameon": False,
    "svg.hashsalt": "gatefuse",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
