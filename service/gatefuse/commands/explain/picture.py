"""The roofline picture: how near each backend comes to the roofs, and which of them is in its way.

Both axes count the FLOPs that the computation needs, not those that a kernel does: what computes gate
and up many times over stands far from the roof, however busy it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gatefuse.commands.explain.tables import headline
from gatefuse.commands.plot_style import COLOURS, INK, STYLE
from gatefuse_kernels.explain.quantities import digits, scaled
from gatefuse_kernels.explain.results import Explanation, Form, Point

_SIZE_INCHES = (9.6, 5.6)
_DPI = 150
_PADDING = 0.45
"""Decades of free space around the points."""
_LABEL_GAP = (26.0, 14.0)
"""Points (1/72 inch) along both axes that keep labels apart; what stands nearer shares one."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """How a backend is drawn: hollow marks around a full one show where several stand."""

    colour: str
    shape: str
    size: float
    is_full: bool


_MARKS = {
    "eager": _Mark(COLOURS[1], "o", 13.0, is_full=False),
    "compiled": _Mark(COLOURS[3], "s", 8.5, is_full=False),
    "fused": _Mark(COLOURS[0], "o", 5.0, is_full=True),
    "textbook": _Mark(COLOURS[4], "D", 6.0, is_full=True),
}


@dataclass(frozen=True, slots=True)
class _Place:
    """FLOPs per byte and FLOPs per second, of what is needed."""

    intensity: float
    rate: float


@dataclass(frozen=True, slots=True)
class _Pile:
    """Points with one label."""

    place: _Place
    members: list[tuple[Point, Form]] = field(default_factory=list)


def draw(explanation: Explanation, path: Path) -> None:
    """Writes the picture; the suffix says as what.

    Raises:
        OSError: The file cannot be written.
        ValueError: There is no arithmetic, and so no place under the roofs: both axes are logarithms.
    """
    if not all(map(_needed_flops, explanation.points)):
        raise ValueError(f"{explanation.subject} has no arithmetic to draw under a roof")
    with mpl.rc_context({**STYLE, "axes.grid.axis": "both"}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axis = figure.subplots()
        _frame(axis, explanation)
        _roofs(axis, explanation)
        _points(axis, explanation)
        figure.suptitle(headline(explanation), x=0.012, ha="left", fontsize=10.5)
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=len(labels), fontsize=9)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=_DPI, metadata=metadata)


def _rate_roof(explanation: Explanation) -> float:
    roofs = explanation.roofs
    return roofs.product_flops if explanation.is_mlp else roofs.elementwise_flops


def _needed_flops(point: Point) -> int:
    return min(form.flops for form in point.forms)


def _predicted(point: Point, form: Form) -> _Place:
    needed = _needed_flops(point)
    return _Place(needed / form.bytes_moved, needed / form.predicted_s)


def _measured(point: Point, form: Form) -> _Place | None:
    if form.measured is None:
        return None
    needed = _needed_flops(point)
    return _Place(needed / form.bytes_moved, needed / (form.measured.median_us * 1e-6))


def _drawn(explanation: Explanation) -> Iterator[tuple[Point, Form]]:
    for point in explanation.points:
        for form in point.forms:
            if form.backend in _MARKS:
                yield point, form


def _frame(axis: Axes, explanation: Explanation) -> None:
    pairs = list(_drawn(explanation))
    found = [_measured(*pair) for pair in pairs]
    places = [_predicted(*pair) for pair in pairs] + [place for place in found if place]
    rate = _rate_roof(explanation)
    ridge = explanation.roofs.ridge(rate)
    wide = 10**_PADDING
    axis.set_xscale("log")
    axis.set_yscale("log")
    left = min(place.intensity for place in places) / wide
    right = max(ridge, max(place.intensity for place in places)) * wide * 2
    axis.set_xlim(left, right)
    axis.set_ylim(min(place.rate for place in places) / wide / 2, rate * wide)
    sizes = "; beside the marks: rows" if explanation.is_mlp else ""
    axis.set_xlabel(f"FLOPs needed per byte moved{sizes}")
    axis.set_ylabel("FLOPs needed per second")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: digits(tick)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: scaled(tick, "FLOP/s")))
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(LogLocator(numticks=14))
        each.set_minor_formatter(NullFormatter())


def _roofs(axis: Axes, explanation: Explanation) -> None:
    rate = _rate_roof(explanation)
    bandwidth = explanation.roofs.bandwidth_bytes_per_s
    ridge = explanation.roofs.ridge(rate)
    left, right = axis.get_xlim()
    axis.plot([left, ridge, right], [left * bandwidth, rate, rate], color=INK, linewidth=1.6)
    axis.plot([ridge, ridge], [axis.get_ylim()[0], rate], color=INK, linewidth=0.8, linestyle=":")
    style: dict[str, Any] = {"fontsize": 9, "color": INK, "textcoords": "offset points"}
    axis.annotate(
        scaled(rate, "FLOP/s"), (right, rate), xytext=(-4, 5), ha="right", va="bottom", **style
    )
    middle = 10 ** (0.15 * log10(left) + 0.85 * log10(ridge))
    axis.annotate(
        scaled(bandwidth, "B/s"),
        (middle, middle * bandwidth),
        xytext=(-6, 6),
        ha="right",
        va="bottom",
        **style,
    )
    axis.annotate(
        f"bound by memory ← {digits(ridge)} → by arithmetic",
        (ridge, axis.get_ylim()[0]),
        xytext=(0, 5),
        ha="center",
        va="bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        **style,
    )


def _points(axis: Axes, explanation: Explanation) -> None:
    for backend, mark in _MARKS.items():
        pairs = [pair for pair in _drawn(explanation) if pair[1].backend == backend]
        if not pairs:
            continue
        places = [_predicted(*pair) for pair in pairs]
        axis.plot(
            [place.intensity for place in places],
            [place.rate for place in places],
            mark.shape,
            color=mark.colour,
            markersize=mark.size,
            markerfacecolor=mark.colour if mark.is_full else "none",
            markeredgewidth=1.6,
            label=backend,
            zorder=3,
        )
        measured = [place for pair in pairs if (place := _measured(*pair))]
        axis.plot(
            [place.intensity for place in measured],
            [place.rate for place in measured],
            "x",
            color=mark.colour,
            markersize=7,
            markeredgewidth=1.6,
            zorder=4,
        )
    if any(form.measured for _, form in _drawn(explanation)):
        axis.plot([], [], "x", color=INK, markersize=7, markeredgewidth=1.6, label="measured")
    _labels(axis, explanation)


def _labels(axis: Axes, explanation: Explanation) -> None:
    """Beside a mark its size: the textbook's above the roof, the others' below; one for a whole pile."""
    is_measured = any(form.measured for _, form in _drawn(explanation))
    below = (9.0, -14.0 if is_measured else -6.0)
    anchors = ("fused",) if explanation.is_mlp else ("eager", "compiled", "fused")
    for backends, is_above in ((("textbook",), True), (anchors, False)):
        for pile in _piles(axis, explanation, backends):
            axis.annotate(
                _label(explanation, pile),
                (pile.place.intensity, pile.place.rate),
                xytext=(-8.0, 5.0) if is_above else below,
                textcoords="offset points",
                fontsize=9,
                color=INK,
                ha="right" if is_above else "left",
                va="bottom" if is_above else "top",
                zorder=5,
            )


def _piles(axis: Axes, explanation: Explanation, backends: Sequence[str]) -> list[_Pile]:
    piles: list[_Pile] = []
    for point, form in _drawn(explanation):
        if form.backend in backends:
            place = _predicted(point, form)
            pile = next((each for each in piles if _is_near(axis, each.place, place)), None)
            if pile is None:
                piles.append(pile := _Pile(place))
            pile.members.append((point, form))
    return piles


def _label(explanation: Explanation, pile: _Pile) -> str:
    if explanation.is_mlp:
        first, last = pile.members[0][0].rows, pile.members[-1][0].rows
        return str(first) if first == last else f"{first}–{last}"
    backends = ", ".join(form.backend for _, form in pile.members)
    return f"{backends}: {pile.members[0][1].passes} passes"


def _is_near(axis: Axes, place: _Place, other: _Place) -> bool:
    """Whether labels at both would stand on each other."""
    points = [axis.transData.transform((each.intensity, each.rate)) for each in (place, other)]
    gaps = [abs(one - two) * 72 / axis.figure.dpi for one, two in zip(*points, strict=True)]
    return all(gap < least for gap, least in zip(gaps, _LABEL_GAP, strict=True))
