"""The result as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gatefuse.commands.figures import NOTHING, number, size
from gatefuse.commands.loadtest.stats import BUSY_LIMIT, CellResult, Ratio

_COLUMNS = (
    "model",
    "rows",
    "load",
    "requests/s",
    "rows/s",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "rows/batch",
    "launches/req",
    "bytes/req",
    "errors",
    "error",
    "worst row",
)


def header() -> tuple[str, ...]:
    """Returns the columns' titles."""
    return _COLUMNS


def cells_of(result: CellResult) -> tuple[str, ...]:
    """Returns one row of the table."""
    latency = result.latency
    checked = result.answers.rows > 0
    return (
        result.cell.model,
        str(result.cell.rows),
        result.cell.load.label,
        number(result.requests_per_s),
        number(result.rows_per_s),
        *(
            number(getattr(latency, name) if latency else None)
            for name in ("p50_ms", "p90_ms", "p99_ms")
        ),
        number(result.rows_per_batch),
        number(result.launches_per_request),
        size(result.bytes_per_request),
        str(result.failed),
        f"{result.answers.relative:.1e}" if checked else NOTHING,
        f"{result.answers.worst_row:.1e}" if checked else NOTHING,
    )


def times(value: float | None) -> str:
    """Returns a ratio."""
    return NOTHING if value is None else f"{value:.2f}x"


def ratio_line(ratio: Ratio) -> str:
    """Returns one comparison in words."""
    return (
        f"{ratio.model} against {ratio.base}, rows {ratio.rows}, load {ratio.load}: "
        f"requests/s {times(ratio.requests_per_s)}, p50 {times(ratio.p50)}, "
        f"p99 {times(ratio.p99)}, launches {times(ratio.launches)}, bytes {times(ratio.bytes_moved)}"
    )


def notes(results: Sequence[CellResult]) -> list[str]:
    """Returns what a reader should know before trusting the figures; empty if there is nothing."""
    found = []
    for result in results:
        name = f"{result.cell.model}, rows {result.cell.rows}, load {result.cell.load.label}"
        if result.busy > BUSY_LIMIT:
            found.append(
                f"{name}: a sending process was busy {result.busy:.0%} of the time: "
                "more --processes may show more requests/s"
            )
        if result.failed and result.error_text:
            found.append(f"{name}: the first error says {result.error_text!r}")
    return found
