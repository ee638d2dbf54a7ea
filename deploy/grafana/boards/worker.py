"""The board of one worker and the device it owns."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board, Panel, Query, Row
from deploy.grafana.boards.promql import increase, rate, ratio, total
from deploy.grafana.boards.rows.kernels import BUSY, MODELLED
from deploy.grafana.boards.rows.machines import gpu_row, process_row
from deploy.grafana.boards.variables import BANDWIDTH, DEVICE, PROCESS

ON_DEVICE = 'device=~"$device"'
IN_PROCESS = 'process=~"$process"'
# Bytes are counted by model, seconds by model and device: each model's bytes per busy second, times those seconds.
OF_A_MODEL = "instance, model, backend"
TRAFFIC = (
    f"sum by (device) ({rate(BUSY, ON_DEVICE)} * on ({OF_A_MODEL}) group_left () "
    f"({ratio(OF_A_MODEL, rate(MODELLED), rate(BUSY))}))"
)

WORK = Row(
    "Its work",
    (
        Panel(
            "Busy",
            "percentunit",
            "Share of the time in which the device worked on batches. Workers on a CPU count as one device.",
            (Query(total("device", rate(BUSY, ON_DEVICE)), "{{device}}"),),
        ),
        Panel(
            "Busy with which model",
            "percentunit",
            "The same, by model and backend.",
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
            (Query(TRAFFIC, "{{device}}"),),
        ),
        Panel(
            "Share of the bandwidth",
            "percentunit",
            "That traffic over the bandwidth at the top of the page.",
            (Query(f"{TRAFFIC} / $bandwidth", "{{device}}"),),
        ),
    ),
)

FAULTS = Row(
    "Its faults",
    (
        Panel(
            "Device errors, by kind",
            "short",
            "Out of memory, errors that stay, memory errors, batches that took too long, answers that are no numbers.",
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
    description="A worker process and its device. Choose both; several are shown beside each other.",
    variables=(PROCESS, DEVICE, BANDWIDTH),
    rows=(WORK, FAULTS, process_row(IN_PROCESS), gpu_row(ON_DEVICE)),
)
