"""What the driver knows of its node: the service's models and processes, their devices, and the GPUs."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gatefuse.device_report import DeviceReport
from gatefuse.metrics.gpu import GpuWatch
from gatefuse.metrics.node_families import (
    DEVICE_ERRORS,
    DEVICE_MEMORY,
    ERROR_KINDS,
    GPU_FAMILIES,
    MODEL_READY,
    NodeFamily,
)
from gatefuse.metrics.processes import Processes

DRIVER = "driver"


class Owner(NamedTuple):
    """The process that owns a device, and what it says of it."""

    pid: int
    report: DeviceReport


class Node(Collector):
    """Looked at by the driver's loop, asked by the endpoint's threads.

    `models_ready` says of each loaded model whether a worker can run it; the driver sets it once it knows.
    """

    def __init__(self, processes: Processes | None = None, gpus: GpuWatch | None = None) -> None:
        """Nothing is known before the first look."""
        self.models_ready: Callable[[], Mapping[str, bool]] = dict
        self._processes = processes or Processes()
        self._gpus = gpus or GpuWatch()
        self._owners: Mapping[str, Owner] = {}
        self._present: frozenset[str] = frozenset()
        self._errors = dict.fromkeys(ERROR_KINDS, 0)
        self._processes_series: Mapping[NodeFamily, dict[tuple[str, ...], float]] = {}

    def look_at(self, pids: Mapping[str, int], owners: Mapping[str, Owner]) -> None:
        """Looks at the processes, by name, and takes the reports of the devices, by label."""
        self._processes.look_at({DRIVER: os.getpid(), **pids})
        self._processes_series = self._processes.series()
        for device, owner in owners.items():
            before = self._owners.get(device)
            counted = before.report.errors if before and before.pid == owner.pid else {}
            for kind, count in owner.report.errors.items():
                self._errors[kind] += count - counted.get(kind, 0)
        # A device whose worker is silent now keeps what was counted for that process.
        self._owners = {**self._owners, **owners}
        self._present = frozenset(owners)
        self._gpus.look_at(
            {device: each.report.uuid for device, each in self._owners.items() if each.report.uuid}
        )

    def device_failed(self, kind: str) -> None:
        """A fault that no process lived to report; `kind` is one of ERROR_KINDS."""
        self._errors[kind] += 1

    def collect(self) -> Iterator[Metric]:
        """Every family, with the series that there are."""
        if models := self.models_ready():
            yield MODEL_READY.exposed({(name,): ready for name, ready in models.items()})
        for family, series in self._processes_series.items():
            yield family.exposed(series)
        yield DEVICE_ERRORS.exposed({(kind,): count for kind, count in self._errors.items()})
        memory: dict[tuple[str, ...], float] = {
            (device, kind): size
            for device, owner in self._owners.items()
            if device in self._present
            for kind, size in owner.report.memory.items()
        }
        if memory:
            yield DEVICE_MEMORY.exposed(memory)
        gpus = self._gpus.series()
        for family in GPU_FAMILIES:
            if family in gpus:
                yield family.exposed(gpus[family])


this_node = Node()
