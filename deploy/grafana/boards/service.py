"""The board of the whole service: from what clients see down to the processes."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.rows.batching import BATCHING, REPLICAS
from deploy.grafana.boards.rows.kernels import KERNELS
from deploy.grafana.boards.rows.machines import DCGM, EVENT_LOOP_LAG, VERSIONS, gpu_row, process_row
from deploy.grafana.boards.rows.requests import ARE_USERS_FINE, WHY_REFUSED
from deploy.grafana.boards.variables import BANDWIDTH, MODELS, NODES

SERVICE = Board(
    uid="gatefuse-service",
    title="Gatefuse service",
    description="Read from the top: are users fine, why were some refused, and what the machines do about it.",
    variables=(NODES, MODELS, BANDWIDTH),
    rows=(
        ARE_USERS_FINE,
        WHY_REFUSED,
        BATCHING,
        REPLICAS,
        KERNELS,
        gpu_row(),
        DCGM,
        process_row(more=(EVENT_LOOP_LAG,)),
        VERSIONS,
    ),
)
