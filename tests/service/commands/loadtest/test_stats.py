"""What the measurements mean, and how they are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gatefuse.commands.figures import number, size
from gatefuse.commands.loadtest.checks import Errors, Gate
from gatefuse.commands.loadtest.jobs import CellJob, CellReport, Target
from gatefuse.commands.loadtest.plan import Cell, Load
from gatefuse.commands.loadtest.stats import CellResult, Latency, compare_models, summarise
from gatefuse.commands.loadtest.table import cells_of, header, notes, ratio_line
from gatefuse.commands.text_table import text_table

GATE = Gate.of(1e-2)


def _report(milliseconds: list[float], **fields: object) -> CellReport:
    report = CellReport(np.array(milliseconds) / 1e3, answers=Errors(8, 0, 1e-6, 1.0, 1e-3))
    for name, value in fields.items():
        setattr(report, name, value)
    return report


def _result(
    model: str = "m", rows: int = 4, backend: str = "fused", **fields: object
) -> CellResult:
    costs = {
        "costed": 2,
        "batches": 0.5,
        "launches": 4.0,
        "bytes_moved": 2e6,
        "backends": [backend],
    }
    report = _report([1.0, 3.0], **{**costs, **fields})
    return summarise(Cell(model, rows, Load(concurrency=8)), [report], 2.0, GATE)


def test_percentiles_are_of_all_latencies() -> None:
    latency = Latency.of(np.arange(1001) / 1e3)
    assert latency is not None
    assert (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms) == pytest.approx(
        (500, 900, 990, 1000)
    )
    assert latency.mean_ms == pytest.approx(500)
    assert latency.curve_ms[0] == 0
    assert latency.curve_ms[-1] == 1000
    assert Latency.of(np.empty(0)) is None


def test_processes_are_merged() -> None:
    reports = [
        _report(
            [1.0, 2.0],
            errors={"UNAVAILABLE": 1},
            busy=0.2,
            costed=2,
            batches=1.0,
            launches=2.0,
            queue_us=30,
        ),
        _report(
            [9.0],
            errors={"UNAVAILABLE": 2, "CANCELLED": 1},
            busy=0.5,
            costed=1,
            batches=0.5,
            launches=1.0,
        ),
    ]
    result = summarise(Cell("m", 4, Load(concurrency=2)), reports, 2.0, GATE)
    assert result.requests == 3
    assert result.requests_per_s == pytest.approx(1.5)
    assert result.rows_per_s == pytest.approx(6)
    assert result.rows_per_batch == pytest.approx(8)
    assert result.launches_per_request == pytest.approx(1)
    assert result.queue_us == pytest.approx(10)
    assert result.busy == 0.5
    assert result.failed == 4
    assert result.answers.rows == 16
    assert result.problems == [
        "1 requests failed with CANCELLED",
        "3 requests failed with UNAVAILABLE",
    ]


def test_right_answers_are_no_problem() -> None:
    assert _result().problems == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"answers": Errors(8, 1, 1.0, 1.0, 2.0)}, "1 of 8 rows are wrong"),
        ({"malformed": 2}, "2 requests failed with malformed answer"),
        ({"unsent": 5}, "5 requests were not sent"),
        ({"latencies_s": np.empty(0)}, "no request was answered in the measured time"),
    ],
    ids=["wrong", "malformed", "unsent", "silent"],
)
def test_problems_are_put_into_words(fields: dict[str, Any], text: str) -> None:
    assert any(text in problem for problem in _result(**fields).problems)


def test_server_without_costs() -> None:
    result = _result(costed=2, batches=0.0)
    assert result.rows_per_batch is None
    assert result.launches_per_request is None
    assert cells_of(result)[8:11] == ("-", "-", "-")


def test_models_are_compared_with_the_eager_one_of_their_own_cell() -> None:
    results = [
        _result("fused", backend="fused", launches=2.0),
        _result("eager", backend="eager", launches=5.0),
        replace(_result("fused"), cell=Cell("fused", 9, Load(concurrency=8))),
    ]
    (ratio,) = compare_models(results)
    assert (ratio.model, ratio.base, ratio.rows) == ("fused", "eager", 4)
    assert ratio.launches == pytest.approx(0.4)
    assert ratio.requests_per_s == pytest.approx(1)
    assert "fused against eager, rows 4, load 8: requests/s 1.00x" in ratio_line(ratio)


def test_without_an_eager_model_the_first_is_the_measure() -> None:
    results = [_result("a"), _result("b", latencies_s=np.empty(0))]
    (ratio,) = compare_models(results)
    assert (ratio.model, ratio.base) == ("b", "a")
    assert ratio.p50 is None
    assert "p50 -" in ratio_line(ratio)


def test_table_lines_up() -> None:
    result = _result("a-long-name")
    lines = text_table([header(), cells_of(result), cells_of(_result("b"))]).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split() == [
        "a-long-name",
        "4",
        "8",
        "1.00",
        "4.00",
        "2.00",
        "2.80",
        "2.98",
        "16.0",
        "2.00",
        "1.00",
        "MB",
        "0",
        "1.0e-03",
        "1.0e-03",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.5, "0.50"),
        (12.34, "12.3"),
        (99.99, "100.0"),
        (123.4, "123"),
        (98765.0, "98765"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00 B"),
        (1500.0, "1.50 KB"),
        (352_000_000.0, "352 MB"),
        (2e16, "20000 TB"),
    ],
)
def test_sizes(value: float | None, text: str) -> None:
    assert size(value) == text


def test_notes_warn_of_a_busy_sender_and_quote_the_first_error() -> None:
    assert notes([_result()]) == []
    busy, failed = notes(
        [_result(busy=0.97), _result(errors={"UNAVAILABLE": 1}, error_text="draining")]
    )
    assert "busy 97% of the time" in busy
    assert "'draining'" in failed


def test_reports_and_jobs_survive_json() -> None:
    report = _report([1.0, 2.5], backends=["fused"], errors={"UNAVAILABLE": 1})
    again = CellReport.of(report.to_fields())
    np.testing.assert_array_equal(again.latencies_s, report.latencies_s)
    assert (again.answers, again.errors, again.backends) == (
        report.answers,
        report.errors,
        report.backends,
    )
    job = CellJob.of(
        {
            "target": {
                "name": "m",
                "inputs": ["x"],
                "outputs": ["y"],
                "backend": "fused",
                "dtype": "bf16",
                "is_first": True,
            },
            "rows": 1,
            "load": {"concurrency": 0, "rate": 5.0, "arrivals": "fixed"},
            "warm_up_s": 1.0,
            "seconds": 2.0,
            "row_gate": None,
        }
    )
    assert job.target == Target("m", ["x"], ["y"], "fused", "bf16", is_first=True)
    assert job.load == Load(rate=5.0, arrivals="fixed")
