"""Exemplars of several processes in one exposition."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gatefuse.metrics import exemplars, families
from gatefuse.metrics.exemplars import ExemplarFile, WithExemplars


class _Family:
    """The family of durations, as a collector; one observation in every bucket."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        family = Histogram(
            exemplars.FAMILY,
            "Seconds.",
            ["method", "outcome"],
            buckets=families.DURATION_BUCKETS_S,
            registry=self._registry,
        )
        for bound in (*families.DURATION_BUCKETS_S, 1e9):
            family.labels("ModelInfer", "ok").observe(bound)
        Histogram("other_seconds", "Seconds.", registry=self._registry).observe(1.0)

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


@pytest.fixture
def registry(tmp_path: Path) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(WithExemplars(_Family(), tmp_path))
    return registry


def _note(folder: Path, monkeypatch: pytest.MonkeyPatch, pid: int, *noted: tuple[Any, ...]) -> None:
    """What a process of that number notes: durations, traces and times."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    file = ExemplarFile(folder)
    for duration_s, trace_id, at_s in noted:
        monkeypatch.setattr("time.time", lambda at_s=at_s: at_s)
        file.note("ModelInfer", "ok", duration_s, trace_id)
    file.flush()


def _exposed(registry: CollectorRegistry) -> dict[str, tuple[str, float, float]]:
    """Trace, duration and time by the bucket's edge; the text must be valid."""
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    return {
        sample.labels["le"]: (
            sample.exemplar.labels["trace_id"],
            sample.exemplar.value,
            float(sample.exemplar.timestamp or 0),
        )
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar
    }


def test_each_bucket_has_the_newest_of_all_processes(
    registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _note(tmp_path, monkeypatch, 1, (0.003, "a1", 10.0), (0.004, "a2", 11.0), (0.3, "a3", 14.0))
    _note(tmp_path, monkeypatch, 2, (0.005, "b1", 12.0), (0.4, "b2", 13.0), (99.0, "b3", 15.0))
    assert _exposed(registry) == {
        "0.005": ("b1", 0.005, 12.0),
        "0.5": ("a3", 0.3, 14.0),
        "+Inf": ("b3", 99.0, 15.0),
    }


def test_the_older_format_has_none(
    registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = generate_latest(registry)
    _note(tmp_path, monkeypatch, 1, (0.003, "a1", 10.0))
    assert generate_latest(registry) == before


def test_a_file_that_cannot_be_written_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = ExemplarFile(tmp_path / "none")
    file.note("ModelInfer", "ok", 0.1, "a")
    file.flush()
    assert "No such file" in caplog.text
