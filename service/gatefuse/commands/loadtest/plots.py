"""The report's plots, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from gatefuse.commands.figures import number, size
from gatefuse.commands.loadtest.stats import CellResult
from gatefuse.commands.plot_style import COLOURS, STYLE

_PAGE_WIDTH = 12.2
_PANEL_HEIGHT = 2.9
_MAX_COLUMNS = 3
_LABELLED_BARS = 12
_GROUP_WIDTH = 0.8
_LOG_TICKS = (1.0, 2.0, 5.0)
# Plots of one panel fit beside each other.
_NARROW_PANELS = 1


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: its title, one sentence about how to read it, and its picture."""

    title: str
    text: str
    svg: str
    is_wide: bool


def _plain(tick: float, _: float) -> str:
    return f"{tick:g}"


def _nothing(tick: float, _: float) -> str:
    return ""


def _bytes(tick: float, _: float) -> str:
    return size(tick) if tick else "0"


def plots(results: Sequence[CellResult]) -> list[Plot]:
    """Returns the report's plots; one whose figures nobody has is left out."""
    with mpl.rc_context(STYLE):
        wanted = [
            _throughput(results),
            _percentiles(results),
            _distributions(results),
            _bars(
                results,
                "Rows per batch",
                "Rows that shared a device batch, from the server's account: what batching makes of the load.",
                lambda result: result.rows_per_batch,
            ),
            _bars(
                results,
                "Kernel launches per request",
                "A request's share of the launches of its batches: fewer kernels, and more rows to share them.",
                lambda result: result.launches_per_request,
            ),
            _bars(
                results,
                "Bytes moved per request",
                "A request's share of the device memory that its batches read and wrote, from the server's account.",
                lambda result: result.bytes_per_request,
                size,
                _bytes,
            ),
        ]
    return [plot for plot in wanted if plot is not None]


def _throughput(results: Sequence[CellResult]) -> Plot | None:
    return _bars(
        results,
        "Requests per second",
        "Answered requests; one panel for each number of rows, the load along the axis.",
        lambda result: result.requests_per_s,
    )


def _percentiles(results: Sequence[CellResult]) -> Plot | None:
    panels = sorted({result.cell.rows for result in results})
    models, loads = _models(results), _loads(results)
    figure, axes = _grid(len(panels))
    for rows, axis in zip(panels, axes, strict=False):
        for index, model in enumerate(models):
            places = _places(index, len(models), len(loads))
            shown = [_find(results, model, rows, load) for load in loads]
            # An empty line, so that the legend knows a model that has no answer in the first panel.
            axis.plot([], [], "o", label=model, color=_colour(index))
            _whiskers(axis, places, shown, _colour(index))
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=_LOG_TICKS))
        axis.yaxis.set_major_formatter(_plain)
        axis.yaxis.set_minor_formatter(_nothing)
        axis.set_xlim(-0.5, len(loads) - 0.5)
        _label_loads(axis, results, loads, rows)
    title = "Latency percentiles (ms)"
    text = "The dot is the median, the tick above it the 90th percentile, the end of the line the 99th."
    return _plot(title, text, figure, axes, len(panels))


def _bars(
    results: Sequence[CellResult],
    title: str,
    text: str,
    value: Callable[[CellResult], float | None],
    label: Callable[[float], str] = number,
    tick: Callable[[float, float], str] = _plain,
) -> Plot | None:
    if all(value(result) is None for result in results):
        return None
    panels = sorted({result.cell.rows for result in results})
    models, loads = _models(results), _loads(results)
    figure, axes = _grid(len(panels))
    for rows, axis in zip(panels, axes, strict=False):
        width = _GROUP_WIDTH / len(models)
        for index, model in enumerate(models):
            places = _places(index, len(models), len(loads))
            shown = [_find(results, model, rows, load) for load in loads]
            heights = [(value(result) if result else None) or 0.0 for result in shown]
            bars = axis.bar(places, heights, width * 0.92, label=model, color=_colour(index))
            if len(models) * len(loads) <= _LABELLED_BARS:
                axis.bar_label(
                    bars, [label(height) for height in heights], fontsize=7.5, padding=1.5
                )
        axis.yaxis.set_major_formatter(tick)
        axis.margins(y=0.12)
        _label_loads(axis, results, loads, rows)
    return _plot(title, text, figure, axes, len(panels))


def _whiskers(
    axis: Axes, places: NDArray[np.float64], shown: Sequence[CellResult | None], colour: str
) -> None:
    for place, result in zip(places, shown, strict=True):
        if result is not None and (latency := result.latency) is not None:
            axis.plot([place, place], [latency.p50_ms, latency.p99_ms], color=colour, linewidth=1.6)
            axis.plot([place], [latency.p50_ms], "o", color=colour, markersize=6)
            axis.plot([place], [latency.p90_ms], marker="_", color=colour, markersize=8)
            axis.plot([place], [latency.p99_ms], marker="_", color=colour, markersize=12)


def _distributions(results: Sequence[CellResult]) -> Plot | None:
    panels = list(dict.fromkeys((result.cell.rows, result.cell.load.label) for result in results))
    models = _models(results)
    figure, axes = _grid(len(panels))
    for (rows, load), axis in zip(panels, axes, strict=False):
        for index, model in enumerate(models):
            result = _find(results, model, rows, load)
            if result is None or result.latency is None:
                continue
            curve = result.latency.curve_ms
            shares = np.linspace(0, 100, len(curve))
            axis.plot(curve, shares, label=model, color=_colour(index), linewidth=1.7)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=_LOG_TICKS))
        axis.xaxis.set_major_formatter(_plain)
        axis.xaxis.set_minor_formatter(_nothing)
        axis.grid(visible=True, axis="x")
        axis.set_xlabel("ms")
        axis.set_ylabel("% answered")
        axis.set_ylim(0, 101)
        axis.set_title(f"{rows} {'row' if rows == 1 else 'rows'}, load {load}", fontsize=10)
    title = "Latency distribution"
    text = (
        "How many requests were answered within a time; further left is better, and so is steeper."
    )
    return _plot(title, text, figure, axes, len(panels))


def _places(index: int, models: int, loads: int) -> NDArray[np.float64]:
    return np.arange(loads, dtype=np.float64) + (index - (models - 1) / 2) * _GROUP_WIDTH / models


def _label_loads(
    axis: Axes, results: Sequence[CellResult], loads: Sequence[str], rows: int
) -> None:
    axis.set_xticks(range(len(loads)), loads)
    axis.set_xlabel(_load_axis(results))
    axis.set_title(f"{rows} {'row' if rows == 1 else 'rows'} a request", fontsize=10)


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    # Four are two by two.
    columns = 2 if count == 4 else min(count, _MAX_COLUMNS)
    lines = -(-count // columns)
    figure = Figure(
        figsize=(_PAGE_WIDTH * columns / max(2, columns), _PANEL_HEIGHT * lines + 0.35),
        layout="constrained",
    )
    axes = list(np.ravel(figure.subplots(lines, columns, squeeze=False)))
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes


def _plot(title: str, text: str, figure: Figure, axes: Sequence[Axes], panels: int) -> Plot:
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), fontsize=9)
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None, "Title": title})
    svg = picture.getvalue()
    # Inside a page there is no place for the XML declaration and the document type.
    return Plot(title, text, svg[svg.index("<svg") :], is_wide=panels > _NARROW_PANELS)


def _find(results: Sequence[CellResult], model: str, rows: int, load: str) -> CellResult | None:
    for result in results:
        cell = result.cell
        if (cell.model, cell.rows, cell.load.label) == (model, rows, load):
            return result
    return None


def _models(results: Sequence[CellResult]) -> list[str]:
    return list(dict.fromkeys(result.cell.model for result in results))


def _loads(results: Sequence[CellResult]) -> list[str]:
    return list(dict.fromkeys(result.cell.load.label for result in results))


def _load_axis(results: Sequence[CellResult]) -> str:
    return "requests sent per second" if results[0].cell.load.is_open else "clients at a time"


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
