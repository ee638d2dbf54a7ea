"""How many series a frontend makes: known in advance, and within the budget."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, multiprocess

ROOT = Path(__file__).parents[3]
BUDGET = 800
FIXED = 456
# Of one model, besides what its batches add.
PER_MODEL = 85
PER_ROW_CLASS = 13

PROGRAM = """
import sys
from dataclasses import replace
from gatefuse import metrics
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.metrics import families
from gatefuse_kernels.ledger import Entry
from tests.service.fakes import MLP

models, rows, metrics_on = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "on"
if metrics_on:
    metrics.declare_frontend("frontend-0", lambda: 0.0)
else:
    metrics.switch_off()
rpcs = [metrics.RpcMetrics(method) for method in families.METHODS]
for number in range(models):
    served = replace(MLP, name=f"ffn-{number}", max_batch_rows=rows)
    model = metrics.ModelMetrics(served, 8192)
    metrics.watch_queue(served.name, lambda: 3)
    for mode in ("eager", "graph"):
        entries = tuple(Entry(kernel, mode, 1, 1, 1, 1) for kernel in ("gate_up", "down"))
        for batch in range(1, rows + 1):
            model.accepted(batch, 40)
            model.answered(batch, 0.1, 40)
            model.sealed(batch, 1, "idle")
            padded = 2 ** (batch - 1).bit_length()
            done = DoneMessage(Status.OK, 0, padded, 0, 0.25, 0.125, entries)
            model.computed("cuda:0", batch, (30, 20), done, 0.5)
for rpc in rpcs:
    rpc.started()
    rpc.finished("OK", "ok", 0.1)
metrics.flush()
"""


def _series(folder: Path, models: int, rows: int, metrics: str = "on") -> Counter[str]:
    """What one frontend with so many models exports, by family."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    if metrics == "off":
        del environment["PROMETHEUS_MULTIPROC_DIR"]
    command = [sys.executable, "-c", PROGRAM, str(models), str(rows), metrics]
    subprocess.run(command, env=environment, check=True, timeout=120)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return Counter({metric.name: len(metric.samples) for metric in registry.collect()})


def _of_model(row_classes: int, graph_buckets: int, kernels: int = 2, devices: int = 1) -> int:
    """Launches by mode, bytes by direction and FLOPs of each kernel; a series of each bucket; busy time of a device."""
    return PER_MODEL + PER_ROW_CLASS * row_classes + graph_buckets + 5 * kernels + devices


@pytest.mark.parametrize(
    ("models", "rows", "row_classes"),
    [(0, 1, 0), (1, 1, 1), (1, 5, 3), (2, 256, 5)],
    ids=["none", "one_row", "odd", "normal"],
)
def test_series_are_as_many_as_the_formula_says(
    tmp_path: Path, models: int, rows: int, row_classes: int
) -> None:
    buckets = (rows - 1).bit_length() + 1
    expected = FIXED + models * _of_model(row_classes, buckets)
    assert _series(tmp_path, models, rows).total() == expected
    if (models, rows) == (2, 256):
        assert expected <= BUDGET


def test_without_metrics_no_family_is_kept(tmp_path: Path) -> None:
    assert _series(tmp_path, 2, 256, metrics="off") == {}
    assert list(tmp_path.iterdir()) == []
