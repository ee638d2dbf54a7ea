"""Reports of devices become series: faults are added up over processes, memory is there only while it is reported."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, generate_latest
from tests.service.metrics.fake_nvml import FakeNvml

from gatefuse.device_report import DeviceReport
from gatefuse.metrics.gpu import GpuWatch
from gatefuse.metrics.node import Node, Owner

GPU = "cuda:0"


def _value(node: Node, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(node)
    return registry.get_sample_value(name, labels)


def _errors(node: Node, kind: str) -> float | None:
    return _value(node, "gatefuse_device_errors_total", kind=kind)


def _owner(pid: int, oom: int, **memory: int) -> Owner:
    return Owner(pid, DeviceReport(memory=memory, errors={"oom": oom}))


def test_faults_are_added_up_over_the_processes_of_a_device() -> None:
    node = Node()
    assert _errors(node, "oom") == 0
    node.look_at({}, {GPU: _owner(1, oom=2)})
    node.look_at({}, {GPU: _owner(1, oom=3)})
    assert _errors(node, "oom") == 3
    node.look_at({}, {})
    node.look_at({}, {GPU: _owner(1, oom=3)})
    assert _errors(node, "oom") == 3, "it was silent for a moment"
    node.look_at({}, {GPU: _owner(2, oom=1)})
    assert _errors(node, "oom") == 4
    node.device_failed("ecc")
    assert (_errors(node, "ecc"), _errors(node, "sticky")) == (1, 0)


def test_memory_is_there_while_it_is_reported() -> None:
    node = Node()
    name = "gatefuse_device_memory_bytes"
    node.look_at({}, {GPU: _owner(1, 0, weights=100), "cpu:1": _owner(2, 0)})
    assert _value(node, name, device=GPU, kind="weights") == 100
    assert _value(node, name, device="cpu:1", kind="weights") is None
    node.look_at({}, {})
    assert _value(node, name, device=GPU, kind="weights") is None


def test_a_worker_without_a_gpu_exports_no_gpu_family() -> None:
    node = Node()
    node.look_at({}, {"cpu:0": _owner(1, 0)})
    text = _text(node)
    assert "gatefuse_gpu" not in text
    assert "gatefuse_device_memory" not in text


def test_gpu_figures_have_the_label_of_the_workers_device() -> None:
    gpus = GpuWatch(lambda: None)
    node = Node(gpus=gpus)
    node.look_at({}, {"cuda:3": Owner(1, DeviceReport(uuid="11"))})
    gpus.read(FakeNvml())
    assert _value(node, "gatefuse_gpu_power_watts", device="cuda:3") == 345.6
    assert _value(node, "gatefuse_gpu_energy_joules_total", device="cuda:3") == 1.5


def test_models_that_a_worker_can_run() -> None:
    node = Node()
    assert "gatefuse_model_ready" not in _text(node)
    node.models_ready = lambda: {"up": True, "down": False}
    assert _value(node, "gatefuse_model_ready", model="up") == 1
    assert _value(node, "gatefuse_model_ready", model="down") == 0


def test_the_driver_is_one_of_the_processes() -> None:
    node = Node()
    node.look_at({"worker-0": os.getpid()}, {})
    for process in ("driver", "worker-0"):
        resident = _value(node, "gatefuse_process_resident_bytes", process=process)
        assert (resident or 0) > 10 * 2**20


def _text(node: Node) -> str:
    registry = CollectorRegistry()
    registry.register(node)
    return generate_latest(registry).decode()
