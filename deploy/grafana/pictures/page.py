"""A whole board as one picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import matplotlib
from deploy.grafana.boards.as_json import lines_of
from deploy.grafana.boards.panels import Board, Panel, Row
from deploy.grafana.pictures.panels import Times, draw_panel
from deploy.grafana.pictures.source import Drawn, Source
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from gatefuse.commands.plot_style import INK, STYLE

WIDTH_INCHES = 15.0
LINE_INCHES = 2.6
HEADING_INCHES = 0.45
DOTS_PER_INCH = 80
# Flat colours: a palette is a third of the size, and looks the same.
PALETTE = 128


def draw(board: Board, source: Source, chosen: Mapping[str, str], target: Path) -> None:
    """Writes a board as a PNG file.

    Args:
        board: which.
        source: where its numbers come from, and of which time.
        chosen: values of its variables, in place of all or the default.
        target: the file.

    Raises:
        PrometheusError: a query was refused, or there is no answer.
        OSError: the file cannot be written.
    """
    answers = {panel: source.answers(board, panel, chosen) for panel in board.panels}
    with matplotlib.rc_context(STYLE):
        _save(_page(board, answers, Times(source.span, source.marks(board))), target)


def _page(board: Board, answers: dict[Panel, Drawn], times: Times) -> Figure:
    shown = [row for row in board.rows if any(_has_data(answers[panel]) for panel in row.panels)]
    lines: list[Row | tuple[Panel, ...]] = []
    for row in shown:
        lines += [row, *lines_of(row)]
    heights = [HEADING_INCHES if isinstance(line, Row) else LINE_INCHES for line in lines]
    total = HEADING_INCHES + sum(heights)
    figure = Figure(figsize=(WIDTH_INCHES, total), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.012, 1 - 0.2 / total, board.title, fontsize=15, fontweight="bold", va="center")
    top = total - HEADING_INCHES
    for line, height in zip(lines, heights, strict=True):
        if isinstance(line, Row):
            y = (top - 0.28) / total
            figure.text(0.012, y, line.title, fontsize=11.5, color=INK, fontweight="bold")
        else:
            _line(figure, line, answers, times, (top / total, height / total))
        top -= height
    return figure


def _line(
    figure: Figure,
    panels: tuple[Panel, ...],
    answers: dict[Panel, Drawn],
    times: Times,
    place: tuple[float, float],
) -> None:
    top, height = place
    width = 1 / len(panels)
    for number, panel in enumerate(panels):
        left, right = (0.01, 0.01) if panel.kind in ("stat", "table") else (0.052, 0.012)
        box = (
            number * width + left,
            top - 0.7 * height,
            width - left - right,
            0.6 * height,
        )
        draw_panel(figure.add_axes(box), panel, answers[panel], times)


def _has_data(drawn: Drawn) -> bool:
    return any(series for _, series in drawn)


def _save(figure: Figure, target: Path) -> None:
    whole = io.BytesIO()
    figure.savefig(whole, format="png")
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(whole) as image:
        image.convert("RGB").quantize(PALETTE).save(target, optimize=True)
