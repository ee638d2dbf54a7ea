"""The choices at the top of the boards."""

from __future__ import annotations

from deploy.grafana.boards.panels import Variable

NODES = Variable(
    "instance",
    "Node",
    "One service each, as Prometheus calls it. Names of devices and processes are those of their node.",
    query="label_values(gatefuse_build_info, instance)",
)
MODELS = Variable(
    "model",
    "Model",
    "Rows, queues and kernels of these models.",
    query='label_values(gatefuse_queue_capacity_rows{instance=~"$instance"}, model)',
)
# What a launch that only reads the weights of 4096x14336 reached on an H200: docs/performance.md.
BANDWIDTH = Variable(
    "bandwidth",
    "Memory bandwidth, bytes/s",
    "The roof: what the device was measured to read per second. `gatefuse bench kernels` measures it.",
    default="4.56e12",
)
PROCESS = Variable(
    "process",
    "Worker",
    "Slots, not process ids: a replaced worker keeps its name.",
    query="label_values("
    'gatefuse_process_resident_bytes{instance=~"$instance",process=~"worker-.*"}, process)',
    everything="worker-.*",
)
DEVICE = Variable(
    "device",
    "Device",
    "The device that the worker owns.",
    query='label_values(gatefuse_device_busy_seconds_total{instance=~"$instance"}, device)',
)
