"""NVML without a GPU: the calls that the service makes, and the errors that they may end with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TypeVar

T = TypeVar("T")


class NVMLError(Exception):
    """As in pynvml."""


class FakeNvml:
    """One H200 by its UUID; a call whose name is in `broken` is not supported."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlClocksEventReasonSwPowerCap = 0x4
    nvmlClocksEventReasonHwSlowdown = 0x8
    nvmlClocksEventReasonSyncBoost = 0x10
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    def __init__(self, uuid: str = "GPU-11", broken: frozenset[str] = frozenset()) -> None:
        self._uuid = uuid
        self.broken = broken

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._check("nvmlDeviceGetHandleByUUID")
        if uuid != self._uuid:
            raise NVMLError("not found")
        return "handle"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self._answer("nvmlDeviceGetName", "NVIDIA H200")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return self._answer("nvmlDeviceGetMemoryInfo", SimpleNamespace(used=3, total=140))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._answer("nvmlDeviceGetPowerUsage", 345_600)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self._answer("nvmlDeviceGetTemperature", 61)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return self._answer("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=75, memory=1))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._answer("nvmlDeviceGetTotalEnergyConsumption", 1_500)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self._answer("nvmlDeviceGetCurrentClocksEventReasons", 0x4 | 0x40 | 0x1)

    def nvmlDeviceGetTotalEccErrors(self, handle: str, error: int, counter: int) -> int:
        return self._answer("nvmlDeviceGetTotalEccErrors", 2 if error else 9)

    def _check(self, name: str) -> None:
        if name in self.broken or "all" in self.broken:
            raise NVMLError(name)

    def _answer(self, name: str, value: T) -> T:
        self._check(name)
        return value
