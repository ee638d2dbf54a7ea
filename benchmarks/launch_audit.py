"""The launches that Prometheus exports against the kernels that torch.profiler sees, on a GPU: equal, not close.

The worker's engine and link run in this process, under the profiler; the frontend is a process of its own, as in the
service, and its metrics are read from the endpoint. Requests of several sizes, alone and side by side, go through
gRPC to fused, eager and compiled models; then the difference of `gatefuse_kernel_launches_total` is held against the
profiler's kernel events.

    python -m benchmarks.launch_audit --json benchmarks/results/launch-audit.json

Exits 1 when a backend's counts differ, and prints both sides by kernel. The profiler's line "External init callback
must run in same thread" is harmless; KINETO_LOG_LEVEL does not silence it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "grpc_port": 0,
    "device": "cuda",
    "models": [
        {
            "name": "fused",
            "random": {"hidden": 4096, "intermediate": 14336, "layers": 1, "seed": 1},
            "backend": "fused",
            "dtype": "bf16",
            "batching": {"max_batch_rows": 256},
        },
        {"name": "eager", "like": "fused", "backend": "eager"},
        {"name": "eager-direct", "like": "eager", "cuda_graphs": False},
        {"name": "fused-direct", "like": "fused", "cuda_graphs": False},
        {"name": "compiled", "like": "fused", "backend": "compiled"},
    ],
}
ROWS = (1, 3, 16, 100, 256, 300)
REQUESTS_PER_SIZE = 8
FRONTEND = """
import json, sys, time
from pathlib import Path
from gatefuse.config import parse_config
from gatefuse.frontend import Frontend
frontend = Frontend(parse_config(json.loads(sys.argv[1]), Path(".")), [sys.argv[2]])
while not frontend.report().ready:
    time.sleep(0.05)
print(frontend.report().port, flush=True)
sys.stdin.read()
frontend.drain()
"""


def main() -> int:
    """Runs the audit; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the counts here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gatefuse-audit-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        counts = _audit(Path(folder))
    _print(counts)
    equal = all(count["exported"] == count["profiled"] for count in counts.values())
    if options.json:
        options.json.write_text(json.dumps(_report(counts, equal), indent=2) + "\n")
    return 0 if equal else 1


def _audit(folder: Path) -> dict[str, dict[str, Any]]:
    from gatefuse import metrics

    socket_path = folder / "worker.sock"
    _start_worker(socket_path)
    metrics_port, _, _ = metrics.serve("127.0.0.1", 0)
    frontend = subprocess.Popen(
        [sys.executable, "-c", FRONTEND, json.dumps(CONFIG), str(socket_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert frontend.stdin is not None
    assert frontend.stdout is not None
    try:
        port = int(frontend.stdout.readline())
        return {
            model["name"]: _audit_model(model["name"], port, metrics_port)
            for model in CONFIG["models"]
        }
    finally:
        frontend.stdin.close()
        frontend.wait(60)


def _start_worker(socket_path: Path) -> None:
    """The engine and its link on a thread of this process, so that the profiler sees them."""
    from gatefuse.config import parse_config
    from gatefuse.worker import Worker

    models = parse_config(CONFIG, Path()).models
    worker = Worker(str(socket_path), models, "cuda", threads=4)
    while (report := worker.report()).state != "ready":
        if report.error:
            raise SystemExit(report.error)
        time.sleep(0.1)


def _audit_model(model: str, port: int, metrics_port: int) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    before = _exported(model, metrics_port)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        requests = _send(model, port)
        torch.cuda.synchronize()
    time.sleep(0.5)  # the frontend writes its counts ten times a second
    exported = _exported(model, metrics_port) - before
    kernels = Counter(
        event.name
        for event in profiler.events() or []
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    )
    return {
        "requests": requests,
        "exported": exported.total(),
        "profiled": kernels.total(),
        "exported_by_kernel": dict(sorted(exported.items())),
        "profiled_by_kernel": dict(kernels.most_common()),
    }


def _send(model: str, port: int) -> int:
    """Sends requests of every size, first one after the other, then side by side; returns how many."""
    import numpy as np

    from gatefuse.client import Client

    random = np.random.default_rng(0)
    inputs = [random.standard_normal((rows, 4096), dtype=np.float32) for rows in ROWS]
    with Client(f"127.0.0.1:{port}") as client, ThreadPoolExecutor(8) as pool:
        for x in inputs:
            client.infer(model, x, datatype="BF16")
        answers = [
            pool.submit(client.infer, model, x, datatype="BF16") for x in inputs * REQUESTS_PER_SIZE
        ]
        for answer in answers:
            answer.result()
    return len(inputs) * (1 + REQUESTS_PER_SIZE)


def _exported(model: str, metrics_port: int) -> Counter[str]:
    """Launches of a model so far, by the kernel label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    launches: Counter[str] = Counter()
    for line in lines:
        kernel = re.search(r'[{,]kernel="([^"]*)"', line)
        if (
            kernel
            and line.startswith("gatefuse_kernel_launches_total{")
            and f'model="{model}"' in line
        ):
            launches[kernel[1]] += round(float(line.rsplit(" ", 1)[1]))
    return launches


def _report(counts: dict[str, dict[str, Any]], equal: bool) -> dict[str, Any]:
    import platform

    import torch
    import triton

    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m benchmarks.launch_audit",
        "device": torch.cuda.get_device_name(0),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "rows": ROWS,
        "equal": equal,
        "counts": counts,
    }


def _print(counts: dict[str, dict[str, Any]]) -> None:
    print(f"{'model':<14} {'requests':>9} {'exported':>9} {'profiled':>9}")
    for model, count in counts.items():
        print(f"{model:<14} {count['requests']:>9} {count['exported']:>9} {count['profiled']:>9}")
    for model, count in counts.items():
        if count["exported"] != count["profiled"]:
            for side in ("exported", "profiled"):
                print(f"{model}, {side}:")
                for kernel, launches in count[f"{side}_by_kernel"].items():
                    print(f"{launches:>9} {kernel}")


if __name__ == "__main__":
    # The worker's thread is a daemon that waits for packets: nothing is left to join.
    status = main()
    sys.stdout.flush()
    os._exit(status)
