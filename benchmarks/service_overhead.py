"""What the service costs on top of gRPC: against two bare gRPC servers, in one run on one machine.

A echoes the bytes; B batches in its own process with no delay and runs the identity (``bare_servers.py``). The service
runs an elementwise identity with one frontend and one worker. Measured are the median latency of one client, and
requests per second of 32 clients, for requests of one row of 4 and 8 KiB. The sender is a process of its own, the same
for all three. The three take turns in several rounds, and each round's figures are divided pair by pair: what the
machine does besides hits all three alike. The medians of the ratios count.

    python -m benchmarks.service_overhead                       all three
    python -m benchmarks.service_overhead --without-service     the two floors alone

Exits 1 if an answer was wrong or a target was missed: p50 at most 1.5 times A's, requests/s at least 0.8 times B's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import uvloop

from gatefuse.client.blocking import Client
from gatefuse.client.messages import Rows, infer_request
from gatefuse.commands.loadtest.facts import run_facts
from gatefuse.commands.loadtest.runner import Runner, connect
from gatefuse.wire import Datatype

ROW_BYTES = (4096, 8192)
LATENCY_CLIENTS = 1
THROUGHPUT_CLIENTS = 32
QUEUE_DELAY_US = 3000
MAX_P50_RATIO = 1.5
MIN_RATE_RATIO = 0.8
REQUESTS = 64
WARM_UP_S = 1.0
TIMEOUT_S = 10.0
START_TIMEOUT_S = 120.0
RESULTS = Path(__file__).parent / "results"
CONFIG = """\
device: cpu
frontends: 1
workers: 1
models:
{models}"""
MODEL = """\
  - name: {name}
    kind: elementwise
    expression: x
    columns: {columns}
    dtype: fp32
    backend: eager
    batching: {{max_batch_rows: 256, max_queue_delay_us: {delay_us}}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A running server: its name here, its address, the process that stands for it."""

    name: str
    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of one server."""

    server: str
    row_bytes: int
    clients: int
    round: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    wrong: int
    sender_cpu_ms: float
    server_cpu_ms: float


def model_name(row_bytes: int) -> str:
    """Returns the served model's name for rows of that size."""
    return f"identity-{row_bytes}"


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a server; yields it and its first line of output that speaks of a port."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip().isdigit() or line.startswith("ready: "):
                yield process, line.strip()
                return
        raise SystemExit(f"{shlex.join(command)} did not start")
    finally:
        process.terminate()
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextmanager
def bare(name: str, kind: str) -> Iterator[Target]:
    """Runs one of the bare servers."""
    with running([sys.executable, "-m", "benchmarks.bare_servers", kind]) as (process, port):
        yield Target(name, f"127.0.0.1:{port}", process.pid)


@contextmanager
def service(delay_us: int = QUEUE_DELAY_US, *, metrics: bool = True) -> Iterator[Target]:
    """Runs the service; a batch may wait ``delay_us`` for company."""
    models = "".join(
        MODEL.format(
            name=model_name(size), columns=size // Datatype.FP32.itemsize, delay_us=delay_us
        )
        for size in ROW_BYTES
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "identity.yaml"
        config.write_text(CONFIG.format(models=models), encoding="utf-8")
        command = [sys.executable, "-m", "gatefuse.cli", "serve", str(config)]
        command += ["--grpc-port", "0", "--metrics-port", "0"]
        command += [] if metrics else ["--no-metrics"]
        with running(command) as (process, line):
            # ready: grpc HOST:PORT, metrics http://HOST:PORT/metrics
            url = line.split()[2].rstrip(",")
            with Client(url) as client:
                ready = all(client.model_ready(model_name(size)) for size in ROW_BYTES)
            if not ready:
                raise SystemExit("the service says that it is ready, and its models are not")
            yield Target("service", url, process.pid)


async def send(url: str, row_bytes: int, clients: int, seconds: float) -> dict[str, float]:
    """Puts one server under a closed loop, from the process that calls this."""
    generator = np.random.default_rng(row_bytes)
    contents = [generator.bytes(row_bytes) for _ in range(REQUESTS)]
    shape = (1, row_bytes // Datatype.FP32.itemsize)
    requests = [
        infer_request(
            model_name(row_bytes), {"x": Rows(content, shape, Datatype.FP32)}
        ).SerializeToString()
        for content in contents
    ]
    wrong = 0

    def check(number: int, answer: bytes, done_s: float) -> None:
        # The raw content is the last field of request and response alike, so this fits all three servers.
        nonlocal wrong
        wrong += not answer.endswith(contents[number])

    channels = await connect(url, 1, TIMEOUT_S)
    runner = Runner(channels, requests, TIMEOUT_S, check)
    begin_s = time.monotonic() + WARM_UP_S
    end_s = begin_s + seconds
    cpu_s = time.process_time()
    await runner.closed_loop(clients, end_s)
    cpu_s = time.process_time() - cpu_s
    await channels[0].close()
    latencies_s = runner.samples.latencies_s(begin_s, end_s)
    p50_s, p99_s = np.percentile(latencies_s, [50, 99])
    answered = len(runner.samples.done_s)
    return {
        "requests_per_s": latencies_s.size / seconds,
        "p50_ms": float(p50_s) * 1e3,
        "p99_ms": float(p99_s) * 1e3,
        "wrong": wrong + sum(runner.samples.errors.values()),
        "sender_cpu_ms": cpu_s / answered * 1e3,
        "answered": answered,
    }


def cpu_seconds(pid: int) -> float:
    """Returns the processor time that a process and its descendants have taken so far."""
    total = 0.0
    process = psutil.Process(pid)
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def measure(target: Target, row_bytes: int, clients: int, number: int, seconds: float) -> Figure:
    """Measures one server once, from a fresh sender."""
    cpu_s = cpu_seconds(target.pid)
    command = [sys.executable, "-m", "benchmarks.service_overhead", "--send", target.url]
    command += ["--row-bytes", str(row_bytes), "--clients", str(clients), "--seconds", str(seconds)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    sent: dict[str, Any] = json.loads(output)
    answered = sent.pop("answered")
    cpu_ms = (cpu_seconds(target.pid) - cpu_s) / answered * 1e3
    return Figure(target.name, row_bytes, clients, number, server_cpu_ms=cpu_ms, **sent)


def ratios(figures: Sequence[Figure], base: str, clients: int, key: str) -> dict[int, list[float]]:
    """Returns, for each size, the service's figure divided by another server's, round by round."""
    found: dict[int, list[float]] = {}
    for size in ROW_BYTES:
        values = {
            (figure.server, figure.round): getattr(figure, key)
            for figure in figures
            if (figure.row_bytes, figure.clients) == (size, clients)
        }
        rounds = sorted(number for server, number in values if server == "service")
        found[size] = [values["service", number] / values[base, number] for number in rounds]
    return found


def judge(figures: Sequence[Figure]) -> tuple[list[str], bool]:
    """Returns the verdict's lines and whether every target was met."""
    lines, met = [], True
    for base, clients, key, target in (
        ("A", LATENCY_CLIENTS, "p50_ms", MAX_P50_RATIO),
        ("B", THROUGHPUT_CLIENTS, "requests_per_s", MIN_RATE_RATIO),
    ):
        for size, pairs in ratios(figures, base, clients, key).items():
            if not pairs:
                continue
            middle = median(pairs)
            good = middle <= target if key == "p50_ms" else middle >= target
            met = met and good
            bound = "at most" if key == "p50_ms" else "at least"
            spread = ", ".join(f"{pair:.2f}" for pair in pairs)
            lines.append(
                f"{size // 1024} KiB, {clients} clients: {key} is {middle:.2f} of {base}'s "
                f"({spread}); {bound} {target}: {'met' if good else 'MISSED'}"
            )
    return lines, met


def summary(figures: Sequence[Figure]) -> list[str]:
    """Returns the medians over the rounds, a line for each server and load."""
    lines = ["server   row    clients  requests/s  p50 ms  p99 ms  CPU ms/request: server, sender"]
    for size in ROW_BYTES:
        for clients in (LATENCY_CLIENTS, THROUGHPUT_CLIENTS):
            for server in dict.fromkeys(figure.server for figure in figures):
                chosen = [
                    f
                    for f in figures
                    if (f.server, f.row_bytes, f.clients) == (server, size, clients)
                ]
                middle = {
                    key: median(getattr(figure, key) for figure in chosen)
                    for key in (
                        "requests_per_s",
                        "p50_ms",
                        "p99_ms",
                        "server_cpu_ms",
                        "sender_cpu_ms",
                    )
                }
                lines.append(
                    f"{server:8} {size // 1024} KiB  {clients:7}  {middle['requests_per_s']:10.0f}  "
                    f"{middle['p50_ms']:6.3f}  {middle['p99_ms']:6.3f}  "
                    f"{middle['server_cpu_ms']:22.3f}, {middle['sender_cpu_ms']:.3f}"
                )
    return lines


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes, and returns the exit status."""
    figures = []
    with ExitStack() as stack:
        targets = [
            stack.enter_context(bare("A", "echo")),
            stack.enter_context(bare("B", "batch")),
        ]
        if not arguments.without_service:
            targets.append(stack.enter_context(service()))
        for number in range(arguments.rounds):
            # Every round begins with another server: none is always the first after a pause.
            turn = targets[number % len(targets) :] + targets[: number % len(targets)]
            for size in ROW_BYTES:
                for clients in (LATENCY_CLIENTS, THROUGHPUT_CLIENTS):
                    figures += [measure(t, size, clients, number, arguments.seconds) for t in turn]
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr, flush=True)
    verdict, met = judge(figures)
    wrong = sum(figure.wrong for figure in figures)
    if wrong:
        verdict.append(f"{wrong} answers were wrong or missing")
    lines = [*summary(figures), *verdict]
    print("\n".join(lines))
    result = {
        "facts": run_facts(
            shlex.join(["python", "-m", "benchmarks.service_overhead", *sys.argv[1:]])
        ),
        "summary": lines,
        "figures": [asdict(figure) for figure in figures],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {arguments.json.name}")
    return 0 if met and not wrong else 1


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The service against two bare gRPC servers.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of each measurement, after a second of warm-up"
    )
    parser.add_argument(
        "--without-service", action="store_true", help="measure the bare servers only"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "service_overhead.json")
    sender = parser.add_argument_group(
        "what the benchmark calls itself with, as the sending process"
    )
    sender.add_argument("--send", metavar="URL")
    sender.add_argument("--row-bytes", type=int, choices=ROW_BYTES)
    sender.add_argument("--clients", type=int)
    arguments = parser.parse_args()
    if arguments.send is None:
        return run(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sent = send(arguments.send, arguments.row_bytes, arguments.clients, arguments.seconds)
        print(json.dumps(runner.run(sent)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
