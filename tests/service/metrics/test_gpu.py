"""NVML's figures in our units, under the worker's device; whatever it does not say is absent and not zero."""

from __future__ import annotations

import threading

import pynvml
import pytest
from tests.service.metrics.fake_nvml import FakeNvml

from gatefuse.metrics import node_families as nf
from gatefuse.metrics.gpu import STALE_S, GpuWatch, load_nvml, read_gpu

DEVICE = "cuda:2"


def test_every_figure_in_base_units() -> None:
    assert read_gpu(FakeNvml(), DEVICE, "11") == {
        nf.GPU_INFO: {(DEVICE, "11", "NVIDIA H200"): 1},
        nf.GPU_MEMORY_USED: {(DEVICE,): 3},
        nf.GPU_MEMORY_TOTAL: {(DEVICE,): 140},
        nf.GPU_POWER: {(DEVICE,): 345.6},
        nf.GPU_TEMPERATURE: {(DEVICE,): 61},
        nf.GPU_UTILIZATION: {(DEVICE,): 0.75},
        nf.GPU_ENERGY: {(DEVICE,): 1.5},
        nf.GPU_THROTTLED: {
            (DEVICE, reason): float(reason in ("power_cap", "hw_thermal"))
            for reason in nf.THROTTLE_REASONS
        },
        nf.GPU_ECC_ERRORS: {(DEVICE, "corrected"): 9, (DEVICE, "uncorrected"): 2},
    }


@pytest.mark.parametrize(
    ("call", "family"),
    [
        ("nvmlDeviceGetPowerUsage", nf.GPU_POWER),
        ("nvmlDeviceGetTotalEccErrors", nf.GPU_ECC_ERRORS),
        ("nvmlDeviceGetCurrentClocksEventReasons", nf.GPU_THROTTLED),
    ],
)
def test_what_a_gpu_does_not_support_is_absent(call: str, family: nf.NodeFamily) -> None:
    found = read_gpu(FakeNvml(broken=frozenset({call})), DEVICE, "11")
    assert set(nf.GPU_FAMILIES) - set(found) == {family}


def test_a_gpu_that_is_not_there_or_lost_has_nothing() -> None:
    assert read_gpu(FakeNvml(), DEVICE, "12") == {}
    assert read_gpu(FakeNvml(broken=frozenset({"all"})), DEVICE, "11") == {}


def test_a_slice_of_a_gpu_is_found_by_its_own_uuid() -> None:
    assert nf.GPU_INFO in read_gpu(FakeNvml(uuid="MIG-11"), DEVICE, "11")


def test_calls_and_constants_are_those_of_the_library() -> None:
    for name in vars(FakeNvml):
        if name.startswith(("nvml", "NVML_")):
            assert hasattr(pynvml, name), name
            if isinstance(value := getattr(FakeNvml, name), int):
                assert getattr(pynvml, name) == value


def test_without_a_driver_there_is_no_nvml() -> None:
    if (nvml := load_nvml()) is not None:
        pytest.skip(f"this machine has a driver: {nvml.nvmlSystemGetDriverVersion()}")


def test_nothing_is_asked_for_without_a_gpu() -> None:
    def load() -> None:
        raise AssertionError("nobody has a GPU")

    watch = GpuWatch(load)
    watch.look_at({})
    assert watch.series() == {}


def test_old_figures_are_not_shown() -> None:
    now_s = [0.0]
    watch = GpuWatch(lambda: None, clock=lambda: now_s[0])
    watch.look_at({DEVICE: "11"})
    watch.read(FakeNvml())
    assert watch.series()[nf.GPU_POWER] == {(DEVICE,): 345.6}
    now_s[0] = STALE_S - 0.1
    assert watch.series()
    now_s[0] = STALE_S
    assert watch.series() == {}


def test_the_thread_asks_once_there_is_a_gpu() -> None:
    asked = threading.Event()

    class Asked(FakeNvml):
        def nvmlDeviceGetName(self, handle: str) -> str:
            asked.set()
            return super().nvmlDeviceGetName(handle)

    watch = GpuWatch(Asked, poll_s=3600)
    watch.look_at({DEVICE: "11"})
    assert asked.wait(10)
