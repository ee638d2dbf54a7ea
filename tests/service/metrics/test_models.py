"""What describes a model is there as long as some load of it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from tests.service.fakes import MLP

from gatefuse.metrics import models
from gatefuse.metrics.models import ModelMetrics
from gatefuse_kernels.ledger import Mode

MODEL = replace(MLP, name="comes-and-goes")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert MODEL.name not in {each.model.name for each in models._open_models}


def _info(backend: str) -> float:
    labels = dict(zip(("model", "backend"), (MODEL.name, backend), strict=True))
    described = {**labels, "dtype": "bf16", "hidden": "3", "intermediate": "8"}
    (value,) = [
        sample.value
        for family in REGISTRY.restricted_registry(["gatefuse_model_info"]).collect()
        for sample in family.samples
        if described.items() <= sample.labels.items()
    ]
    return value


def _capacity() -> float | None:
    return REGISTRY.get_sample_value("gatefuse_queue_capacity_rows", {"model": MODEL.name})


def test_a_reload_with_another_backend() -> None:
    old = ModelMetrics(MODEL, 100)
    assert (_info("fused"), _capacity()) == (1, 100)
    new = ModelMetrics(replace(MODEL, backend="eager", generation=1), 200)
    assert (_info("fused"), _info("eager"), _capacity()) == (1, 1, 200)
    old.close()
    assert (_info("fused"), _info("eager"), _capacity()) == (0, 1, 200)
    new.close()
    assert (_info("eager"), _capacity()) == (0, 0)


def test_what_its_batches_count_begins_at_zero() -> None:
    """A rate over the first batches misses whatever a series is born with."""
    kernels: tuple[tuple[str, Mode], ...] = (("gate_up", "graph"), ("down", "graph"))
    model = ModelMetrics(replace(MODEL, name="new", kernels=kernels), 100)
    model.meet_device("cuda:0")
    labels = {"model": "new", "backend": "fused"}

    def now(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(f"gatefuse_{name}_total", {**labels, **more})

    for kernel, mode in kernels:
        assert now("kernel_launches", kernel=kernel, mode=mode) == 0
        assert now("dram_bytes_modelled", kernel=kernel, direction="read") == 0
        assert now("dram_bytes_modelled", kernel=kernel, direction="write") == 0
        assert now("flops_modelled", kernel=kernel) == 0
    assert now("kernel_launches", kernel="down", mode="eager") is None
    assert now("device_busy_seconds", device="cuda:0") == 0
    model.close()


def test_a_reload_as_it_was_is_described_throughout() -> None:
    old, new = ModelMetrics(MODEL, 100), ModelMetrics(replace(MODEL, generation=1), 100)
    old.close()
    assert (_info("fused"), _capacity()) == (1, 100)
    new.close()
    assert _info("fused") == 0
