"""Rows through shared memory against rows in messages: 32 MiB a request, in one run on one machine.

The service runs an elementwise identity with one frontend and one worker. One client asks again and again, three ways:

- wire: the rows travel in the request and in the answer;
- client: `gatefuse.Client` moves them through shared memory by itself, copying arrays in and out;
- region: the arrays lie in a registered region, as with tritonclient's utilities, and nobody copies at the client.

The three take turns in several rounds, and each round's figures are divided: what the machine does besides hits all
alike. The medians count. A request's time is that of its call; a rate is the bytes of its rows, one way, by that time.

    python -m benchmarks.shared_memory

Exits 1 if an answer was wrong or a target was missed: region at least 8 GB/s and 8 times the wire.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.service_overhead import running
from numpy.typing import NDArray

from gatefuse.client.blocking import Client
from gatefuse.client.memory import Region
from gatefuse.client.messages import Place, Rows, infer_request
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.loadtest.facts import run_facts
from gatefuse.malloc import KEEP_BIG_BLOCKS
from gatefuse.wire import Datatype

COLUMNS = 8192
MIB = 2**20
MIN_GB_PER_S = 8.0
MIN_RATIO = 8.0
TIMEOUT_S = 60.0
CONFIG = """\
device: {device}
frontends: 1
workers: 1
allow_client_shm: true
max_message_bytes: 2147483647
models:
  - name: identity
    kind: elementwise
    expression: x
    columns: {columns}
    dtype: fp32
    backend: eager
    batching: {{max_batch_rows: {rows}}}
"""
Ask = Callable[[], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One way in one round."""

    way: str
    round: int
    median_ms: float
    gb_per_s: float
    wrong: int


@contextmanager
def service(device: str, rows: int) -> Iterator[str]:
    """Runs the service; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "identity.yaml"
        config.write_text(CONFIG.format(device=device, columns=COLUMNS, rows=rows), "utf-8")
        command = [sys.executable, "-m", "gatefuse.cli", "serve", str(config)]
        command += ["--grpc-port", "0", "--metrics-port", "0"]
        with running(command) as (_, line):
            yield line.split()[2].rstrip(",")


@contextmanager
def region_asker(url: str, x: NDArray[np.float32]) -> Iterator[Ask]:
    """Rows that lie in a region; answers that are left there."""
    transport = Transport(url, None, TIMEOUT_S, NO_RETRY)
    region = Region(2 * x.nbytes)
    source, target = region.view[: x.nbytes], region.view[x.nbytes :]
    np.frombuffer(source, np.float32)[:] = x.reshape(-1)
    answer = np.frombuffer(target, np.float32).reshape(x.shape)
    transport.call(rpcs.REGISTER_MEMORY, region.registration())
    rows = Rows(Place(region.name, 0, source), (len(x), COLUMNS), Datatype.FP32)
    places = {"y": Place(region.name, x.nbytes, target)}
    request = infer_request("identity", {"x": rows}, outputs=["y"], places=places)

    def ask() -> NDArray[np.float32]:
        transport.call(rpcs.MODEL_INFER, request)
        return answer

    try:
        yield ask
    finally:
        transport.close()
        region.unlink()


@contextmanager
def client_asker(url: str, x: NDArray[np.float32], *, shared: bool) -> Iterator[Ask]:
    """Rows that our client sends."""
    with Client(url, timeout_s=TIMEOUT_S, shared_memory="on" if shared else "off") as client:
        yield lambda: client.infer("identity", x).output


def measure(ask: Ask, x: NDArray[np.float32], requests: int) -> tuple[float, int]:
    """The median time of a request in seconds, and how many answers were wrong."""
    times = []
    wrong = 0
    for number in range(requests):
        begun_s = time.perf_counter()
        answer = ask()
        times.append(time.perf_counter() - begun_s)
        if number in (0, requests - 1):
            wrong += not np.array_equal(answer, x)
        if not answer.flags.owndata:
            answer[:: max(1, len(answer) - 1)] = np.nan  # the next must write them again
        del answer
    return median(times), wrong


def run(options: argparse.Namespace) -> list[Figure]:
    """All rounds."""
    rows = options.mib * MIB // (COLUMNS * 4)
    x = np.random.default_rng(0).standard_normal((rows, COLUMNS), np.float32)
    figures = []
    with ExitStack() as stack:
        url = stack.enter_context(service(options.device, rows))
        askers = {
            "wire": stack.enter_context(client_asker(url, x, shared=False)),
            "client": stack.enter_context(client_asker(url, x, shared=True)),
            "region": stack.enter_context(region_asker(url, x)),
        }
        for ask in askers.values():
            measure(ask, x, 2)
        for number in range(options.rounds):
            for way, ask in askers.items():
                seconds, wrong = measure(ask, x, options.requests)
                rate = x.nbytes / seconds / 1e9
                figures.append(Figure(way, number, seconds * 1e3, rate, wrong))
                print(f"round {number} {way:6} {seconds * 1e3:8.2f} ms {rate:6.2f} GB/s")
    return figures


def summary(figures: Sequence[Figure]) -> dict[str, float]:
    """Medians over the rounds: each way's rate, and its ratio to the wire in the same round."""
    found = {}
    wire = {figure.round: figure.gb_per_s for figure in figures if figure.way == "wire"}
    for way in ("wire", "client", "region"):
        rates = {figure.round: figure.gb_per_s for figure in figures if figure.way == way}
        found[f"{way}_gb_per_s"] = median(rates.values())
        found[f"{way}_ratio"] = median(rates[number] / wire[number] for number in wire)
    return found


def main() -> int:
    """Measures, prints, keeps the result; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--mib", type=int, default=32, help="of a request (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10, help="a round and way")
    parser.add_argument("--output", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()
    if not os.environ.keys() >= KEEP_BIG_BLOCKS.keys():
        # As clients that send megabytes should be started: it is the wire that gains.
        os.environ.update(KEEP_BIG_BLOCKS)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.shared_memory", *sys.argv[1:]])
    figures = run(options)
    found = summary(figures)
    for key, value in found.items():
        print(f"{key:18} {value:7.2f}")
    if options.output:
        result = {
            "facts": run_facts(shlex.join(sys.argv)),
            "summary": found,
            "figures": [asdict(figure) for figure in figures],
        }
        options.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    wrong = sum(figure.wrong for figure in figures)
    if wrong:
        print(f"{wrong} answers were wrong")
    met = found["region_gb_per_s"] >= MIN_GB_PER_S and found["region_ratio"] >= MIN_RATIO
    return 0 if met and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
