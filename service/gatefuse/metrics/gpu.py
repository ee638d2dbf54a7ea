"""What NVML says of the GPUs that workers own: asked by the driver, on a thread of its own.

By the driver and not by the worker, since a question to a GPU in trouble may take seconds, and since the figures then
outlive a worker that its GPU took down. A GPU is known by its UUID, so that CUDA_VISIBLE_DEVICES, which numbers the
devices of each process anew, does not matter.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gatefuse.metrics.node_families import (
    GPU_ECC_ERRORS,
    GPU_ENERGY,
    GPU_INFO,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_THROTTLED,
    GPU_UTILIZATION,
    NodeFamily,
)

log = logging.getLogger(__name__)

POLL_S = 2.0
# What NVML has not answered for so long is not shown any more.
STALE_S = 10.0

Series = dict[NodeFamily, dict[tuple[str, ...], float]]


def load_nvml() -> Any | None:
    """NVML, ready to be asked; None where there is no such library, or no driver."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.debug("NVML cannot be used: %s", error)
        return None
    return pynvml


def read_gpu(nvml: Any, device: str, uuid: str) -> Series:
    """The figures of one GPU under the label `device`; what it does not support, or does not answer, is left out."""
    found: Series = {}
    try:
        handle = _handle(nvml, uuid)
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return found
    found[GPU_INFO] = {(device, uuid, name): 1}
    for ask in (_memory, _power, _temperature, _utilization, _energy, _throttling, _ecc_errors):
        with contextlib.suppress(nvml.NVMLError):
            for family, labels, value in ask(nvml, handle):
                found.setdefault(family, {})[device, *labels] = value
    return found


class GpuWatch:
    """Reads the figures every POLL_S seconds once there is a GPU to ask for."""

    def __init__(
        self,
        load: Callable[[], Any | None] = load_nvml,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        """`load` gives NVML, or None where there is none."""
        self._load = load
        self._clock = clock
        self._poll_s = poll_s
        self._devices: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None
        self._figures: Series = {}
        self._read_s = -STALE_S

    def look_at(self, devices: Mapping[str, str]) -> None:
        """The UUID of each device by its label; starts to ask when the first is known."""
        self._devices = dict(devices)
        if self._devices and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            self._thread.start()

    def series(self) -> Series:
        """The last figures; none where they are too old."""
        return self._figures if self._clock() - self._read_s < STALE_S else {}

    def read(self, nvml: Any) -> None:
        """Asks for every device."""
        figures: Series = {}
        for device, uuid in sorted(self._devices.items()):
            for family, series in read_gpu(nvml, device, uuid).items():
                figures.setdefault(family, {}).update(series)
        self._figures, self._read_s = figures, self._clock()

    def _run(self) -> None:
        nvml = self._load()
        if nvml is None:
            log.info("no figures of the GPUs: NVML is not there (pip install 'gatefuse[server]')")
            return
        while True:
            self.read(nvml)
            time.sleep(self._poll_s)


Figures = Iterator[tuple[NodeFamily, tuple[str, ...], float]]


def _handle(nvml: Any, uuid: str) -> Any:
    # torch gives the number alone; NVML wants to hear what it is the number of.
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _memory(nvml: Any, handle: Any) -> Figures:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    yield GPU_MEMORY_USED, (), memory.used
    yield GPU_MEMORY_TOTAL, (), memory.total


def _power(nvml: Any, handle: Any) -> Figures:
    yield GPU_POWER, (), nvml.nvmlDeviceGetPowerUsage(handle) / 1e3


def _temperature(nvml: Any, handle: Any) -> Figures:
    yield GPU_TEMPERATURE, (), nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)


def _utilization(nvml: Any, handle: Any) -> Figures:
    yield GPU_UTILIZATION, (), nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100


def _energy(nvml: Any, handle: Any) -> Figures:
    yield GPU_ENERGY, (), nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def _throttling(nvml: Any, handle: Any) -> Figures:
    bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    for reason, bit in (
        ("power_cap", nvml.nvmlClocksEventReasonSwPowerCap),
        ("hw_slowdown", nvml.nvmlClocksEventReasonHwSlowdown),
        ("hw_thermal", nvml.nvmlClocksEventReasonHwThermalSlowdown),
        ("hw_power_brake", nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown),
        ("sw_thermal", nvml.nvmlClocksEventReasonSwThermalSlowdown),
        ("sync_boost", nvml.nvmlClocksEventReasonSyncBoost),
    ):
        yield GPU_THROTTLED, (reason,), float(bool(bits & bit))


def _ecc_errors(nvml: Any, handle: Any) -> Figures:
    for kind, number in (
        ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        count = nvml.nvmlDeviceGetTotalEccErrors(handle, number, nvml.NVML_VOLATILE_ECC)
        yield GPU_ECC_ERRORS, (kind,), count
