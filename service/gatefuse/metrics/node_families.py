"""What the driver looks at on its node: each family's name, labels and meaning.

Unlike those in `families` these have no series where there is nothing to see: a process that is gone, a CPU's power.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

MEMORY_KINDS = ("weights", "graph_pool", "reserved", "peak")
ERROR_KINDS = ("oom", "sticky", "ecc", "timeout")
ECC_KINDS = ("corrected", "uncorrected")
THROTTLE_REASONS = (
    "power_cap",
    "hw_slowdown",
    "hw_thermal",
    "hw_power_brake",
    "sw_thermal",
    "sync_boost",
)


class NodeFamily(NamedTuple):
    """One family; a counter's name is without its `_total`."""

    name: str
    labels: tuple[str, ...]
    help: str
    kind: Literal["counter", "gauge"] = "gauge"

    def exposed(self, series: Mapping[tuple[str, ...], float]) -> Metric:
        """The family with its series, by label values."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        metric: Metric = make(self.name, self.help, labels=self.labels)
        for labels, value in series.items():
            metric.add_metric(labels, value)  # type: ignore[attr-defined]
        return metric


RESIDENT_BYTES = NodeFamily(
    "gatefuse_process_resident_bytes",
    ("process",),
    "Memory of a process that is in RAM. Pages that several processes share, a checkpoint's or an arena's, count for "
    "each of them.",
)
OPEN_FDS = NodeFamily("gatefuse_process_open_fds", ("process",), "Open file descriptors.")
CPU_SECONDS = NodeFamily(
    "gatefuse_process_cpu_seconds",
    ("process",),
    "Processor time, user and system, of all processes that took this place one after the other.",
    "counter",
)
DEVICE_MEMORY = NodeFamily(
    "gatefuse_device_memory_bytes",
    ("device", "kind"),
    "GPU memory as the worker's allocator sees it: the weights; the memory of captured graphs; all that it took from "
    "the device; the most that tensors ever had. These overlap. The CUDA context and library workspaces are not "
    "in them.",
)
DEVICE_ERRORS = NodeFamily(
    "gatefuse_device_errors",
    ("kind",),
    "Faults of devices: a batch for which memory was not enough (oom), a fault that ended the worker (sticky, ecc), a "
    "batch that never ended (timeout).",
    "counter",
)
MODEL_READY = NodeFamily(
    "gatefuse_model_ready",
    ("model",),
    "1 while some worker that holds the model takes batches, else 0. Absent once the model is unloaded.",
)
GPU_INFO = NodeFamily(
    "gatefuse_gpu_info",
    ("device", "uuid", "name"),
    "Constant 1, labelled with what GPU a worker has.",
)
GPU_MEMORY_USED = NodeFamily(
    "gatefuse_gpu_memory_used_bytes", ("device",), "GPU memory in use, by whatever process."
)
GPU_MEMORY_TOTAL = NodeFamily("gatefuse_gpu_memory_total_bytes", ("device",), "GPU memory.")
GPU_POWER = NodeFamily("gatefuse_gpu_power_watts", ("device",), "Power that the GPU draws.")
GPU_TEMPERATURE = NodeFamily("gatefuse_gpu_temperature_celsius", ("device",), "Of the GPU's die.")
GPU_UTILIZATION = NodeFamily(
    "gatefuse_gpu_utilization_ratio",
    ("device",),
    "Share of the last sample period in which some kernel ran, however small: 1 does not mean that the GPU was full.",
)
GPU_ENERGY = NodeFamily(
    "gatefuse_gpu_energy_joules",
    ("device",),
    "Energy that the GPU used since its driver was loaded.",
    "counter",
)
GPU_THROTTLED = NodeFamily(
    "gatefuse_gpu_throttled", ("device", "reason"), "1 while this holds the GPU's clocks down."
)
GPU_ECC_ERRORS = NodeFamily(
    "gatefuse_gpu_ecc_errors",
    ("device", "kind"),
    "Memory errors that the GPU found since its driver was loaded.",
    "counter",
)
GPU_FAMILIES = (
    GPU_INFO,
    GPU_MEMORY_USED,
    GPU_MEMORY_TOTAL,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    GPU_ENERGY,
    GPU_THROTTLED,
    GPU_ECC_ERRORS,
)
