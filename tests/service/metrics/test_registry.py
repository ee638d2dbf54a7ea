"""What is exported of models that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from gatefuse.metrics.node import Node
from gatefuse.metrics.registry import service_registry, without_unloaded


def _gauge(name: str, series: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, "Help.", labels=["model"])
    for model, value in series.items():
        family.add_metric([model], value)
    return family


def test_an_unloaded_model_is_not_described_and_has_no_queue() -> None:
    metrics = without_unloaded(
        [
            _gauge("gatefuse_queue_rows", {"a": 0, "b": 0}),
            _gauge("gatefuse_model_info", {"a": 1, "b": 0}),
            _gauge("gatefuse_queue_capacity_rows", {"a": 64, "b": 0}),
            _gauge("gatefuse_requests_in_flight", {"a": 0, "b": 0}),
        ]
    )
    left = {metric.name: {s.labels["model"] for s in metric.samples} for metric in metrics}
    assert left == {
        "gatefuse_queue_rows": {"a"},
        "gatefuse_model_info": {"a"},
        "gatefuse_queue_capacity_rows": {"a"},
        "gatefuse_requests_in_flight": {"a", "b"},
    }


def test_what_is_asked_for_by_name_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    registry = service_registry(Node())
    (family,) = registry.restricted_registry(["gatefuse_device_errors_total"]).collect()
    assert {sample.name for sample in family.samples} == {"gatefuse_device_errors_total"}
    assert not list(registry.restricted_registry(["other"]).collect())


def test_a_service_without_models_yet() -> None:
    assert without_unloaded([]) == []
