"""The boards, by the name of the file that each is written to."""

from __future__ import annotations

from deploy.grafana.boards.fused_and_eager import FUSED_AND_EAGER
from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.service import SERVICE
from deploy.grafana.boards.worker import WORKER

BOARDS: dict[str, Board] = {
    "service": SERVICE,
    "fused-and-eager": FUSED_AND_EAGER,
    "worker": WORKER,
}
