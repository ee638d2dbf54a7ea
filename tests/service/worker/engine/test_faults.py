"""Faults of a device by kind, and what a worker reports of a GPU: read through torch, here a fake of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gatefuse.device_report import DeviceReport
from gatefuse.worker.engine.base import EngineFault
from gatefuse.worker.engine.cuda_report import CudaReport
from gatefuse.worker.engine.faults import DeviceFaults, kind_of


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (MemoryError(), "oom"),
        (EngineFault("CUDA error: an illegal memory access was encountered"), "sticky"),
        (EngineFault("CUDA error: uncorrectable ECC error encountered"), "ecc"),
        (ValueError("ECC"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_kinds(error: BaseException, kind: str | None) -> None:
    assert kind_of(error) == kind


def test_only_faults_are_counted() -> None:
    faults = DeviceFaults()
    for error in (MemoryError(), ValueError("x"), torch.OutOfMemoryError("y")):
        faults.note(error)
    assert faults.counts == {"oom": 2}


def test_memory_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def memory_snapshot() -> list[dict[str, object]]:
        nonlocal looks
        looks += 1
        sizes = {(0, 0): 900, (0, 1): 30, (0, 2): 4}
        return [{"total_size": size, "segment_pool_id": pool} for pool, size in sizes.items()]

    properties = SimpleNamespace(uuid="1b2-3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 800)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", memory_snapshot)
    pools = {0: (0, 1), 1: (0, 1)}
    report = CudaReport(torch.device("cuda:0"), lambda: 700, lambda: dict(pools))
    memory = {"weights": 700, "graph_pool": 30, "reserved": 1000, "peak": 800}
    assert report({"oom": 1}) == DeviceReport("1b2-3", memory, {"oom": 1})
    report({})
    assert looks == 1, "the segments are looked at only when the models have changed"
    pools[2] = (0, 2)
    assert report({}).memory["graph_pool"] == 34
    del pools[0], pools[1]
    assert report({}).memory["graph_pool"] == 4
