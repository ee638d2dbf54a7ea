"""What is exported of models that come and go."""

from __future__ import annotations

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from gatefuse.metrics.registry import without_unloaded


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


def test_a_service_without_models_yet() -> None:
    assert without_unloaded([]) == []
