"""Parts of the text and JSON of reports. Pure: no torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gatefuse_kernels.bench.cases import Verdict
from gatefuse_kernels.bench.results import Spread

NOTHING = "-"
MISSED = "MISSED"


def verdict_cells(verdict: Verdict | None) -> tuple[str, str, str]:
    """The figure, its limit, and a mark if it misses it."""
    if verdict is None:
        return (NOTHING, NOTHING, "")
    return (f"{verdict.value:.3f}", f"{verdict.limit:.2f}", mark(verdict))


def mark(verdict: Verdict) -> str:
    """A word where a limit is missed."""
    return "" if verdict.is_met else MISSED


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """As JSON can hold it."""
    return {**asdict(verdict), "is_met": verdict.is_met}


def range_of(time: Spread) -> str:
    """From the 10th to the 90th percentile."""
    return f"{number(time.p10_us)}-{number(time.p90_us)}"


def number(value_us: float) -> str:
    """Microseconds, in as many digits as mean something."""
    return f"{value_us:.1f}" if value_us < 1000 else f"{value_us:.0f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first row being their names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def held_lines(held: Mapping[str, Sequence[tuple[str, Verdict]]]) -> list[str]:
    """For each kind of limit how many were met, and where it was missed.

    Args:
        held: by what is held, where and with what result.
    """
    lines = []
    for line, verdicts in held.items():
        missed = [
            f"{where} {verdict.value:.3f}" for where, verdict in verdicts if not verdict.is_met
        ]
        met = f"{line}: {len(verdicts) - len(missed)} of {len(verdicts)} limits met"
        lines.append(f"{met}; {MISSED}: {', '.join(missed)}" if missed else met)
    return lines
