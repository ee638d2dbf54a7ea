"""The process that serves under the profiler: `python -m gatefuse.commands.audit.launches CONFIG RESULT.json`.

The worker's engine and link run in this process, where torch.profiler sees their kernels; the
frontend is a process of its own, as in the service, and what it exports is read from the metrics
endpoint. Requests of every size, alone and side by side, go through gRPC to each model; then the
difference of `gatefuse_kernel_launches_total` stands beside the profiler's kernel events.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gatefuse.client.blocking import Client
from gatefuse.commands.audit.cases import request_rows
from gatefuse_kernels.audit.comparing import LaunchCount

if TYPE_CHECKING:
    from gatefuse.client.metadata import ModelMetadata
    from gatefuse.config import ModelConfig, ServiceConfig

_LAUNCHES = "gatefuse_kernel_launches_total"
_REPLAYS = "gatefuse_graph_replays_total"
_SIDE_BY_SIDE = 3
"""Requests of each size that are sent at the same time as the others."""
_CALLERS = 8
_WORKER_THREADS = 4
_FLUSH_S = 0.5
"""The frontend writes its counts ten times a second."""
_POLL_S = 0.1
_FREE_COLUMNS = 1024


def main() -> int:
    """Audit every model; returns 1 if the worker cannot serve them."""
    config_path, result_path = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="gatefuse-audit-") as folder:
        # prometheus_client reads it when it is imported, which what comes next does.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from gatefuse.commands.audit.frontend import audited
        from gatefuse_kernels.audit.profiling import device_facts

        config = audited(config_path)
        launches = _audit(config, config_path, Path(folder))
        result = {
            "facts": device_facts(),
            "launches": [asdict(each) for each in launches],
        }
    result_path.write_text(json.dumps(result), encoding="utf-8")
    return 0


def exported(text: str, family: str, model: str, label: str) -> Counter[str]:
    """Sums of a counter's series of one model, by one label.

    Args:
        text: what the metrics endpoint answers.
        family: the counter's name, with its `_total`.
        model: whose series count.
        label: sums are by its values.
    """
    sums: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith(f"{family}{{") and f'model="{model}"' in line:
            value = re.search(rf'[{{,]{label}="([^"]*)"', line)
            assert value is not None, line
            sums[value[1]] += round(float(line.rsplit(" ", 1)[1]))
    return sums


def _audit(config: ServiceConfig, config_path: Path, folder: Path) -> list[LaunchCount]:
    from gatefuse import metrics

    socket_path = folder / "worker.sock"
    _start_worker(config, socket_path)
    metrics_port = metrics.serve("127.0.0.1", 0).port
    with _frontend(config_path, socket_path) as port:
        return [_audit_model(model, port, metrics_port) for model in config.models]


def _start_worker(config: ServiceConfig, socket_path: Path) -> None:
    """The engine and its link on a thread of this process, so that the profiler sees them."""
    from gatefuse.worker.process import Worker

    worker = Worker(
        str(socket_path), config.models, config.device, _WORKER_THREADS, config.plan_table
    )
    while (report := worker.report()).state != "ready":
        if report.error:
            raise SystemExit(f"gatefuse audit: {report.error}")
        time.sleep(_POLL_S)


@contextmanager
def _frontend(config_path: Path, socket_path: Path) -> Iterator[int]:
    """A frontend's port, while it serves."""
    command = [
        sys.executable,
        "-m",
        "gatefuse.commands.audit.frontend",
        str(config_path),
        str(socket_path),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        if not port:
            raise SystemExit("gatefuse audit: the frontend could not start")
        yield int(port)
    finally:
        process.stdin.close()
        process.wait(60)


def _audit_model(model: ModelConfig, port: int, metrics_port: int) -> LaunchCount:
    from gatefuse_kernels.audit.profiling import kernels_run

    before = _scrape(metrics_port)
    with kernels_run() as profiled:
        requests = _send(model, port)
    time.sleep(_FLUSH_S)
    after = _scrape(metrics_port)

    def difference(family: str, label: str) -> Counter[str]:
        name = model.name
        return exported(after, family, name, label) - exported(before, family, name, label)

    return LaunchCount(
        model=model.name,
        requests=requests,
        buckets=tuple(sorted(map(int, difference(_REPLAYS, "bucket")))),
        exported=dict(sorted(difference(_LAUNCHES, "kernel").items())),
        profiled=dict(profiled.most_common()),
    )


def _send(model: ModelConfig, port: int) -> int:
    """Sends requests of every size, first one after the other, then side by side; returns how many."""
    with Client(f"127.0.0.1:{port}") as client, ThreadPoolExecutor(_CALLERS) as pool:
        metadata = client.model_metadata(model.name)
        rows = request_rows(model.batching.max_batch_rows)
        inputs = [_inputs(metadata, count, model.max_columns) for count in rows]
        datatype = metadata.inputs[0].datatype
        for each in inputs:
            client.infer(model.name, each, datatype=datatype)
        answers = [
            pool.submit(client.infer, model.name, each, datatype=datatype)
            for each in inputs * _SIDE_BY_SIDE
        ]
        for answer in answers:
            answer.result()
    return len(inputs) * (1 + _SIDE_BY_SIDE)


def _inputs(metadata: ModelMetadata, rows: int, max_columns: int) -> dict[str, np.ndarray]:
    """Random rows for each input; `max_columns` limits them where the model fixes no width."""
    random = np.random.default_rng(rows)
    columns = metadata.inputs[0].shape[-1]
    shape = (rows, columns if columns > 0 else min(_FREE_COLUMNS, max_columns))
    return {each.name: random.standard_normal(shape, dtype=np.float32) for each in metadata.inputs}


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


if __name__ == "__main__":
    # The worker's thread is a daemon that waits for packets: nothing is left to join.
    status = main()
    sys.stdout.flush()
    os._exit(status)
