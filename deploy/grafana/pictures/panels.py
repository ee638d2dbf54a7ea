"""One panel on matplotlib's axes."""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from deploy.grafana.boards.panels import Panel
from deploy.grafana.pictures.source import Drawn, Mark
from deploy.grafana.pictures.units import written
from deploy.grafana.prometheus_api import Series, Span
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from gatefuse.commands.plot_style import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# After the colours of every picture of ours, lighter ones: some panels have a line for each model.
MORE_COLOURS = (*COLOURS, "#8c6d31", "#7f7f7f", "#17becf", "#9467bd")
QUIET = "#98a1ae"
LEGEND_LINES = 6
LABEL_CHARACTERS = 26
TABLE_ROWS = 9
DAY_S = 86400.0
TICKS_S = (5, 15, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 86400)


@dataclass(frozen=True)
class Times:
    """What lies along the bottom: moments, and marks at what happened."""

    span: Span
    marks: Sequence[Mark]


def draw_panel(axes: Axes, panel: Panel, found: Drawn, times: Times) -> None:
    """Draws a panel as Grafana would.

    Args:
        axes: an empty place.
        panel: what it asks.
        found: for each of its queries the legend and the answer.
        times: at which moments, and what happened meanwhile.
    """
    axes.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold")
    if not any(series for _, series in found):
        _without_axes(axes)
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color=QUIET)
        return
    _DRAWERS[panel.kind](axes, panel, found, times)


def label_of(legend: str, labels: dict[str, str]) -> str:
    """A line's name: the legend with the labels' values."""
    text = re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), legend).strip()
    return text or ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _without_axes(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _moment(time_s: float) -> float:
    """The number by which matplotlib knows a time: days since 1970."""
    return time_s / DAY_S


def _whole_times(span: Span) -> list[float]:
    start_s, end_s = span.start_s, span.end_s
    step_s = next((step for step in TICKS_S if (end_s - start_s) / step <= 4), TICKS_S[-1])
    first = math.ceil(start_s / step_s)
    return [number * step_s for number in range(first, math.floor(end_s / step_s) + 1)]


def _clock(moment: float, _: int | None) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(moment * DAY_S))


def _timeseries(axes: Axes, panel: Panel, found: Drawn, times: Times) -> None:
    lines = [(label_of(legend, one.labels), one) for legend, series in found for one in series]
    lines.sort(key=lambda line: line[0])
    if len(lines) > LEGEND_LINES:
        # The legend has room for some: those that matter most.
        lines.sort(key=lambda line: -float(np.nansum(line[1].values)))
    colours = [MORE_COLOURS[number % len(MORE_COLOURS)] for number in range(len(lines))]
    moments = [_moment(time_s) for time_s in times.span.moments_s]
    if panel.stacked:
        heights = np.nan_to_num([one.values for _, one in lines])
        names = [name for name, _ in lines]
        axes.stackplot(moments, heights, labels=names, colors=colours, alpha=0.75, linewidth=0)
    else:
        for (name, one), colour in zip(lines, colours, strict=True):
            # Values without neighbours would be lines without length.
            axes.plot(
                moments,
                one.values,
                color=colour,
                label=name,
                linewidth=1.4,
                marker=".",
                markersize=1.4,
            )
    _time_axis(axes, panel, times)
    _legend(axes, [name for name, _ in lines])


def _time_axis(axes: Axes, panel: Panel, times: Times) -> None:
    span = times.span
    for moment_s, colour in times.marks:
        axes.axvline(_moment(moment_s), color=colour, linewidth=1, linestyle=":")
    axes.set_xlim(_moment(span.start_s), _moment(span.end_s))
    axes.set_xticks([_moment(time_s) for time_s in _whole_times(span)])
    axes.xaxis.set_major_formatter(FuncFormatter(_clock))
    axes.tick_params(labelsize=7.5)
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        if panel.minimum is not None:
            axes.set_ylim(bottom=panel.minimum)
            # Nothing but zeros: matplotlib would zoom into them.
            if axes.dataLim.y1 == panel.minimum:
                axes.set_ylim(top=panel.minimum + 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, panel.unit)))
    if panel.maximum is not None:
        axes.set_ylim(top=panel.maximum * 1.02)


def _legend(axes: Axes, names: Sequence[str]) -> None:
    if len(names) <= 1 and not names[0]:
        return
    handles, labels = axes.get_legend_handles_labels()
    short = [textwrap.shorten(label, LABEL_CHARACTERS, placeholder="…") for label in labels]
    more = len(short) - LEGEND_LINES
    if more > 0:
        short[LEGEND_LINES - 1] = f"and {more + 1} more"
    axes.legend(
        handles[:LEGEND_LINES],
        short[:LEGEND_LINES],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=2,
        fontsize=7,
        handlelength=1,
        columnspacing=1,
    )


def _heatmap(axes: Axes, panel: Panel, found: Drawn, times: Times) -> None:
    series = sorted(
        (one for _, several in found for one in several), key=lambda one: float(one.labels["le"])
    )
    counts = np.nan_to_num([one.values for one in series])
    within = np.clip(np.diff(counts, axis=0, prepend=0.0), 0.0, None)
    shown = [row for row in range(len(series)) if within[row].any()] or [0]
    low, high = shown[0], shown[-1] + 1
    axes.imshow(
        np.sqrt(within[low:high]),
        aspect="auto",
        origin="lower",
        cmap="Blues",
        interpolation="nearest",
        extent=(
            _moment(times.span.start_s),
            _moment(times.span.end_s),
            0,
            high - low,
        ),
    )
    axes.grid(visible=False)
    _time_axis(axes, Panel("", panel.unit, "", (), minimum=None), times)
    axes.set_yticks(
        np.arange(high - low) + 0.5, [f"≤ {one.labels['le']}" for one in series[low:high]]
    )


def _latest(found: Drawn) -> list[tuple[str, Series, float]]:
    lines = [
        (label_of(legend, one.labels), one, one.last) for legend, series in found for one in series
    ]
    return sorted(lines, key=lambda line: line[0])


def _stat(axes: Axes, panel: Panel, found: Drawn, _: Times) -> None:
    _without_axes(axes)
    lines = _latest(found)
    for number, (name, _series, value) in enumerate(lines):
        x = (number + 0.5) / len(lines)
        size = 26 if len(lines) == 1 else 15
        text = written(value, panel.unit)
        axes.text(x, 0.55, text, fontsize=size, color=_colour_of(panel, value), ha="center")
        if len(lines) > 1:
            axes.text(x, 0.35, name, fontsize=8, color=QUIET, ha="center")


def _colour_of(panel: Panel, value: float) -> str:
    if not panel.limits:
        return INK
    falling = list(panel.limits) != sorted(panel.limits)
    passed = sum(value < limit if falling else value >= limit for limit in panel.limits)
    return ("#009e73", "#e69f00", "#d55e00")[passed if len(panel.limits) > 1 else 2 * passed]


def _table(axes: Axes, _panel: Panel, found: Drawn, _times: Times) -> None:
    _without_axes(axes)
    lines = _latest(found)[:TABLE_ROWS]
    columns = sorted({name for _, one, _ in lines for name in one.labels})
    cells = [[one.labels.get(c, "") for c in columns] + [f"{v:g}"] for _, one, v in lines]
    height = 0.1 * (len(cells) + 1)
    table = axes.table(
        cellText=cells,
        colLabels=[*columns, "value"],
        cellLoc="left",
        colLoc="left",
        bbox=Bbox.from_bounds(0, 1 - height, 1, height),
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    for cell in table.get_celld().values():
        cell.set_edgecolor("#e4e7ec")


_DRAWERS = {"timeseries": _timeseries, "heatmap": _heatmap, "stat": _stat, "table": _table}
