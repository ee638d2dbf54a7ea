"""The board of one worker and the device it owns."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board, Panel, Query, Row
from deploy.grafana.boards.promql import increase, rate, ratio, total
from deploy.grafana.boards.rows.kernels import BUSY, MODELLED
from deploy.grafana.boards.rows.machines import gpu_row, process_row
from deploy.grafana.boards.variables import BANDWIDTH, DEVICE, NODES, PROCESS

ON_DEVICE = 'device=~"$device"'
IN_PROCESS = 'process=~"$process"'
# Bytes are counted by model, seconds by model and device: each model's bytes per busy second, times those seconds.
OF_A_MODEL = "instance, model, backend"
TRAFFIC = (
    f"sum by (instance, device) ({rate(BUSY, ON_DEVICE)} * on ({OF_A_MODEL}) group_left () "
    f"({ratio(OF_A_MODEL, rate(MODELLED), rate(BUSY))}))"
)

WORK = Row(
    "Its work",
    (
        Panel(
            "Busy",
            "percentunit",
            "Share of the time in which the device worked on batches. On a CPU each worker is a device: cpu:0, cpu:1.",
            (Query(total("instance, device", rate(BUSY, ON_DEVICE)), "{{instance}} {{device}}"),),
        ),
        Panel(
            "Busy with which model",
            "percentunit",
            "The same, by model and backend; the times of several devices add up.",
            (
                Query(
                    total("model, backend", rate(BUSY, ON_DEVICE)),
                    "{{model}} {{backend}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Modelled memory traffic",
            "Bps",
            "Compulsory bytes per second. Each model's bytes are shared among its devices by the "
            "time each was busy with it.",
            (Query(TRAFFIC, "{{instance}} {{device}}"),),
        ),
        Panel(
            "Share of the bandwidth",
            "percentunit",
            "That traffic over the bandwidth at the top of the page.",
            (Query(f"{TRAFFIC} / $bandwidth", "{{instance}} {{device}}"),),
        ),
    ),
)

FAULTS = Row(
    "Its faults",
    (
        Panel(
            "Device errors, by kind",
            "short",
            "Of all workers: batches that found no memory (oom), faults that ended a worker (sticky, ecc), batches "
            "that never ended (timeout).",
            (Query(total("kind", increase("gatefuse_device_errors_total")), "{{kind}}"),),
        ),
        Panel(
            "Restarts of workers",
            "short",
            "Of all workers, by cause.",
            (Query(total("cause", increase("gatefuse_replica_restarts_total")), "{{cause}}"),),
        ),
    ),
)

WORKER = Board(
    uid="gatefuse-worker",
    title="Gatefuse: one worker",
    description="A worker process and its device. Choose the node and both; several are shown beside each other.",
    variables=(NODES, PROCESS, DEVICE, BANDWIDTH),
    rows=(WORK, FAULTS, process_row(IN_PROCESS), gpu_row(ON_DEVICE)),
)
