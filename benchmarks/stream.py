"""One stream against single calls: requests/s of one row with 32 in flight, in one run on one machine.

The service runs an elementwise identity with one frontend and one worker. The sender is a process of its own with one
connection. It sends the same requests as 32 single calls at once, and on one stream on which 32 wait for an answer. The
two take turns of half a second, and each turn's figure is divided by the other's next to it: what the machine does
besides hits both alike. The median of the ratios counts.

    python -m benchmarks.stream

Exits 1 if an answer was wrong, or if the stream is below 1.5 times the single calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import grpc.aio
import numpy as np
import uvloop
from benchmarks.service_overhead import Target, cpu_seconds, model_name, service

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.commands.loadtest.facts import run_facts
from gatefuse.commands.loadtest.runner import connect
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

KINDS = ("unary", "stream")
ROW_BYTES = 4096
IN_FLIGHT = 32
MIN_RATIO = 1.5
WARM_UP_S = 1.0
TIMEOUT_S = 30.0
RESULTS = Path(__file__).parent / "results"
Kind = Callable[[grpc.aio.Channel, "Requests", float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; CPU times are a request's, ``wrong`` counts answers since the beginning."""

    kind: str
    round: int
    requests_per_s: float
    wrong: int
    sender_cpu_ms: float
    server_cpu_ms: float


class Requests:
    """The same requests again and again, and what came back; an id says which request it is an answer to."""

    def __init__(self) -> None:
        """Makes as many as are in flight, no two alike."""
        generator = np.random.default_rng(ROW_BYTES)
        shape = (1, ROW_BYTES // Datatype.FP32.itemsize)
        self.contents = [generator.bytes(ROW_BYTES) for _ in range(IN_FLIGHT)]
        self.messages = []
        for number, content in enumerate(self.contents):
            request = infer_request(
                model_name(ROW_BYTES), {"x": Rows(content, shape, Datatype.FP32)}
            )
            request.id = str(number)
            self.messages.append(request.SerializeToString())
        self.answered = 0
        self.wrong = 0

    def check(self, response: pb.ModelInferResponse) -> int:
        """Counts an answer; returns the number of its request."""
        number = int(response.id)
        self.answered += 1
        self.wrong += list(response.raw_output_contents) != [self.contents[number]]
        return number


async def unary(channel: grpc.aio.Channel, requests: Requests, end_s: float) -> None:
    """Sends single calls until ``end_s``."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    call = channel.unary_unary(method("ModelInfer"), None, None)

    async def client(number: int) -> None:
        while time.monotonic() < end_s:
            answer = await call(requests.messages[number], timeout=TIMEOUT_S)
            requests.check(pb.ModelInferResponse.FromString(answer))

    await asyncio.gather(*map(client, range(IN_FLIGHT)))


async def stream(channel: grpc.aio.Channel, requests: Requests, end_s: float) -> None:
    """Sends on one stream until ``end_s``; every answer makes room for another request."""
    open_stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    open_stream = channel.stream_stream(method("ModelStreamInfer"), None, None)
    call = open_stream()
    due: asyncio.Queue[int | None] = asyncio.Queue()
    for number in range(IN_FLIGHT):
        due.put_nowait(number)

    async def read() -> None:
        open_requests = IN_FLIGHT
        while open_requests:
            message = await call.read()
            assert isinstance(message, bytes), "the stream ended"
            answer = pb.ModelStreamInferResponse.FromString(message)
            number = requests.check(answer.infer_response)
            if time.monotonic() < end_s:
                due.put_nowait(number)
            else:
                open_requests -= 1
        due.put_nowait(None)

    async def write() -> None:
        while (number := await due.get()) is not None:
            await call.write(requests.messages[number])
        await call.done_writing()

    await asyncio.gather(read(), write())


async def send(target: Target, rounds: int, seconds: float) -> list[Figure]:
    """Measures in turns; it runs in a process of its own, and knows the server's to read its CPU time."""
    requests = Requests()
    kinds: dict[str, Kind] = {"unary": unary, "stream": stream}
    (channel,) = await connect(target.url, 1, TIMEOUT_S)
    for run_kind in kinds.values():
        await run_kind(channel, requests, time.monotonic() + WARM_UP_S)
    figures = []
    for number in range(rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            requests.answered = 0
            server_s, sender_s = cpu_seconds(target.pid), time.process_time()
            started_s = time.monotonic()
            await kinds[kind](channel, requests, started_s + seconds)
            rate = requests.answered / (time.monotonic() - started_s)
            sender_ms = (time.process_time() - sender_s) / requests.answered * 1e3
            server_ms = (cpu_seconds(target.pid) - server_s) / requests.answered * 1e3
            figures.append(Figure(kind, number, rate, requests.wrong, sender_ms, server_ms))
    await channel.close()
    return figures


def measure(target: Target, rounds: int, seconds: float) -> list[Figure]:
    """Measures from a fresh sender."""
    command = [sys.executable, "-m", "benchmarks.stream", "--send", target.url]
    command += ["--pid", str(target.pid), "--rounds", str(rounds), "--seconds", str(seconds)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [Figure(**fields) for fields in json.loads(output)]


def summary(figures: Sequence[Figure]) -> tuple[list[str], float]:
    """Returns the lines to print and the median of the rounds' ratios."""
    lines = ["kind     requests/s  CPU ms/request: server, sender"]
    for kind in KINDS:
        chosen = [figure for figure in figures if figure.kind == kind]
        rate, server, sender = (
            median(getattr(figure, key) for figure in chosen)
            for key in ("requests_per_s", "server_cpu_ms", "sender_cpu_ms")
        )
        lines.append(f"{kind:8} {rate:10.0f}  {server:22.3f}, {sender:.3f}")
    rates = {(figure.kind, figure.round): figure.requests_per_s for figure in figures}
    rounds = sorted({figure.round for figure in figures})
    ratios = [rates["stream", number] / rates["unary", number] for number in rounds]
    spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    middle = median(ratios)
    verdict = "met" if middle >= MIN_RATIO else "MISSED"
    lines.append(f"stream / unary: {middle:.2f} ({spread}); at least {MIN_RATIO}: {verdict}")
    return lines, middle


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes, and returns the exit status."""
    with service(arguments.delay_us) as target:
        figures = measure(target, arguments.rounds, arguments.seconds)
    lines, ratio = summary(figures)
    wrong = figures[-1].wrong
    if wrong:
        lines.append(f"{wrong} answers were wrong")
    print("\n".join(lines))
    result = {
        "facts": run_facts(shlex.join(["python", "-m", "benchmarks.stream", *sys.argv[1:]])),
        "summary": lines,
        "figures": [asdict(figure) for figure in figures],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {arguments.json.name}")
    return 0 if ratio >= MIN_RATIO and not wrong else 1


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="One stream against single calls.")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--delay-us", type=int, default=0, help="max_queue_delay_us of the model")
    parser.add_argument("--json", type=Path, default=RESULTS / "stream.json")
    sender = parser.add_argument_group(
        "what the benchmark calls itself with, as the sending process"
    )
    sender.add_argument("--send", metavar="URL")
    sender.add_argument("--pid", type=int)
    arguments = parser.parse_args()
    if arguments.send is None:
        return run(arguments)
    target = Target("service", arguments.send, arguments.pid)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(send(target, arguments.rounds, arguments.seconds))
    print(json.dumps([asdict(figure) for figure in figures]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
