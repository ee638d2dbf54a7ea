"""The report as one HTML file that needs nothing else, neither files nor network."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from gatefuse.commands.loadtest.plots import plots
from gatefuse.commands.loadtest.report import Report
from gatefuse.commands.loadtest.stats import CellResult, Ratio
from gatefuse.commands.loadtest.table import cells_of, header, notes, times

_RATIO_TITLES = ("requests/s", "p50", "p99", "launches", "bytes")


def render(report: Report) -> str:
    """Returns the page."""
    environment = Environment(
        loader=PackageLoader("gatefuse.commands.loadtest", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        header=header(),
        rows=[(cells_of(result), bool(result.problems)) for result in report.results],
        checked_rows=sum(result.answers.rows for result in report.results),
        requests=sum(result.requests for result in report.results),
        ratio_titles=_RATIO_TITLES,
        ratios=[_ratio_row(ratio) for ratio in report.ratios],
        versus=_versus(report.results),
        notes=notes(report.results),
        plots=plots(report.results),
    )


def _ratio_row(ratio: Ratio) -> tuple[str, ...]:
    return (
        f"{ratio.model} against {ratio.base}",
        str(ratio.rows),
        ratio.load,
        times(ratio.requests_per_s),
        times(ratio.p50),
        times(ratio.p99),
        times(ratio.launches),
        times(ratio.bytes_moved),
    )


def _versus(results: Sequence[CellResult]) -> list[tuple[str, str, str]]:
    """For each model the largest difference from the first model's answers, over all cells."""
    worst: dict[str, tuple[float, float]] = {}
    for result in results:
        if result.versus_first.rows:
            relative, row = worst.get(result.cell.model, (0.0, 0.0))
            worst[result.cell.model] = (
                max(relative, result.versus_first.relative),
                max(row, result.versus_first.worst_row),
            )
    return [(model, f"{relative:.1e}", f"{row:.1e}") for model, (relative, row) in worst.items()]
