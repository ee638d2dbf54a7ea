"""What the measurements of a cell mean. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gatefuse.commands.loadtest.checks import Errors, Gate, problems
from gatefuse.commands.loadtest.jobs import CellReport
from gatefuse.commands.loadtest.plan import Cell

_CURVE_POINTS = 200
# A sending process that is busy for more than this part of the time measures itself.
BUSY_LIMIT = 0.9


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in milliseconds; ``curve`` holds quantiles at equal steps from 0 to 1."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    curve_ms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, latencies_s: NDArray[np.float64]) -> Latency | None:
        """Returns the percentiles of all latencies; None if there are none."""
        if not latencies_s.size:
            return None
        milliseconds = np.sort(latencies_s) * 1e3
        p50, p90, p99 = np.percentile(milliseconds, [50, 90, 99])
        points = min(_CURVE_POINTS, milliseconds.size)
        curve = np.quantile(milliseconds, np.linspace(0, 1, points + 1))
        return cls(
            float(milliseconds.mean()),
            float(p50),
            float(p90),
            float(p99),
            float(milliseconds[-1]),
            [round(float(value), 4) for value in curve],
        )


@dataclass(frozen=True, slots=True)
class CellResult:
    """One row of the table. Costs are the server's own account; None if it gave none."""

    cell: Cell
    seconds: float
    requests: int
    requests_per_s: float
    rows_per_s: float
    latency: Latency | None
    rows_per_batch: float | None
    launches_per_request: float | None
    bytes_per_request: float | None
    queue_us: float | None
    compute_us: float | None
    backends: list[str]
    errors: dict[str, int]
    error_text: str
    unsent: int
    answers: Errors
    gate: Gate | None
    versus_first: Errors
    busy: float
    lag_p99_ms: float
    problems: list[str]

    @property
    def failed(self) -> int:
        """Requests without an answer, or with one that is no answer at all."""
        return sum(self.errors.values()) + self.unsent


def summarise(
    cell: Cell, reports: Sequence[CellReport], seconds: float, gate: Gate | None
) -> CellResult:
    """Merges what the sending processes saw of a cell."""
    latencies_s = np.concatenate([report.latencies_s for report in reports])
    errors: Counter[str] = Counter()
    for report in reports:
        errors.update(report.errors)
        if report.malformed:
            errors["malformed answer"] += report.malformed
    answers = sum((report.answers for report in reports), Errors())
    costed = sum(report.costed for report in reports)
    batches = sum(report.batches for report in reports)
    has_costs = batches > 0
    texts = [report.error_text for report in reports if report.error_text]
    unsent = sum(report.unsent for report in reports)

    def per_request(total: float) -> float | None:
        return total / costed if has_costs else None

    return CellResult(
        cell=cell,
        seconds=seconds,
        requests=latencies_s.size,
        requests_per_s=latencies_s.size / seconds,
        rows_per_s=latencies_s.size * cell.rows / seconds,
        latency=Latency.of(latencies_s),
        # Each request is a part of its batches: the parts add up to the number of batches.
        rows_per_batch=costed * cell.rows / batches if has_costs else None,
        launches_per_request=per_request(sum(report.launches for report in reports)),
        bytes_per_request=per_request(sum(report.bytes_moved for report in reports)),
        queue_us=per_request(sum(report.queue_us for report in reports)),
        compute_us=per_request(sum(report.compute_us for report in reports)),
        backends=sorted({backend for report in reports for backend in report.backends}),
        errors=dict(errors),
        error_text=texts[0] if texts else "",
        unsent=unsent,
        answers=answers,
        gate=gate,
        versus_first=sum((report.versus_first for report in reports), Errors()),
        busy=max(report.busy for report in reports),
        lag_p99_ms=max(report.lag_p99_s for report in reports) * 1e3,
        problems=_problems(answers, gate, errors, unsent, latencies_s.size),
    )


def _problems(
    answers: Errors, gate: Gate | None, errors: Counter[str], unsent: int, requests: int
) -> list[str]:
    found = problems(answers, gate) if gate is not None else []
    found += [f"{count} requests failed with {name}" for name, count in sorted(errors.items())]
    if unsent:
        found.append(f"{unsent} requests were not sent: the server was too far behind")
    if not requests:
        found.append("no request was answered in the measured time")
    return found


@dataclass(frozen=True, slots=True)
class Ratio:
    """One model against another in the same cell: each figure is the model's divided by the other's."""

    model: str
    base: str
    rows: int
    load: str
    requests_per_s: float | None
    p50: float | None
    p99: float | None
    launches: float | None
    bytes_moved: float | None


def compare_models(results: Sequence[CellResult]) -> list[Ratio]:
    """Compares the models of each cell with the one whose backend is eager, or else with the first."""
    groups: dict[tuple[int, str], list[CellResult]] = {}
    for result in results:
        groups.setdefault((result.cell.rows, result.cell.load.label), []).append(result)
    ratios = []
    for (rows, load), group in groups.items():
        base = next((result for result in group if "eager" in result.backends), group[0])
        ratios += [
            Ratio(
                model=result.cell.model,
                base=base.cell.model,
                rows=rows,
                load=load,
                requests_per_s=_divide(result.requests_per_s, base.requests_per_s),
                p50=_divide(_p(result, "p50_ms"), _p(base, "p50_ms")),
                p99=_divide(_p(result, "p99_ms"), _p(base, "p99_ms")),
                launches=_divide(result.launches_per_request, base.launches_per_request),
                bytes_moved=_divide(result.bytes_per_request, base.bytes_per_request),
            )
            for result in group
            if result is not base
        ]
    return ratios


def _p(result: CellResult, name: str) -> float | None:
    return getattr(result.latency, name) if result.latency else None


def _divide(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
