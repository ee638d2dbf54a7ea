"""What counting costs: two services side by side, one with metrics and one without, in one run on one machine.

Each runs an elementwise identity with one frontend and one worker; one client sends requests of one row, 4 KiB, one
after the other. The two take turns of a quarter of a second, in the order A B B A, and each pair of turns gives a ratio
of medians: what the machine does besides hits both alike. Every start of the two processes is a fresh one, in another
order. The median of all ratios counts; beside it stand the middle half of them, and what a service with metrics
measures against another one with metrics, which is the noise.

    python -m benchmarks.metrics_cost

Exits 1 if an answer was wrong, or if the p50 with metrics is above 1.01 times that without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import uvloop
from benchmarks.service_overhead import Target, model_name, service

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.commands.loadtest.facts import run_facts
from gatefuse.commands.loadtest.runner import connect
from gatefuse.wire import Datatype

ROW_BYTES = 4096
TURN_S = 0.25
WARM_UP_S = 3.0
MAX_RATIO = 1.01
TIMEOUT_S = 30.0
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two turns next to each other: medians in milliseconds, and how many requests."""

    first_ms: float
    second_ms: float
    requests: int

    @property
    def ratio(self) -> float:
        """First by second."""
        return self.first_ms / self.second_ms


class Client:
    """One client of one service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends the same request again and again."""
        content = np.random.default_rng(ROW_BYTES).bytes(ROW_BYTES)
        shape = (1, ROW_BYTES // Datatype.FP32.itemsize)
        request = infer_request(model_name(ROW_BYTES), {"x": Rows(content, shape, Datatype.FP32)})
        self._content = content
        self._message = request.SerializeToString()
        self._call: Any = channel.unary_unary(method("ModelInfer"), None, None)
        self.wrong = 0

    async def turn(self, seconds: float) -> list[float]:
        """Latencies in seconds of a closed loop."""
        latencies_s = []
        end_s = time.perf_counter() + seconds
        while (sent_s := time.perf_counter()) < end_s:
            answer: bytes = await self._call(self._message, timeout=TIMEOUT_S)
            latencies_s.append(time.perf_counter() - sent_s)
            # The raw content is the last field of the response.
            self.wrong += not answer.endswith(self._content)
        return latencies_s


async def compare(first: Target, second: Target, pairs: int) -> tuple[list[Pair], int]:
    """Lets the two take turns; returns the pairs, and how many answers were wrong."""
    channels = [(await connect(target.url, 1, TIMEOUT_S))[0] for target in (first, second)]
    a, b = (Client(channel) for channel in channels)
    for client in (a, b):
        await client.turn(WARM_UP_S)
    found = []
    for number in range(pairs):
        if number % 2:
            theirs = await b.turn(TURN_S)
            ours = await a.turn(TURN_S)
        else:
            ours = await a.turn(TURN_S)
            theirs = await b.turn(TURN_S)
        ours_ms, theirs_ms = (float(np.median(each)) * 1e3 for each in (ours, theirs))
        found.append(Pair(ours_ms, theirs_ms, len(ours) + len(theirs)))
    for channel in channels:
        await channel.close()
    return found, a.wrong + b.wrong


def start_and_compare(start: int, pairs: int, *, second_counts: bool) -> tuple[list[Pair], int]:
    """Starts two services, the first with metrics, and compares them; odd starts begin with the second."""
    with ExitStack() as stack:
        counts = [True, second_counts]
        order = (1, 0) if start % 2 else (0, 1)
        targets = {i: stack.enter_context(service(0, metrics=counts[i])) for i in order}
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(compare(targets[0], targets[1], pairs))


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians over pairs of turns, and the middle half of their ratios."""

    first_ms: float
    second_ms: float
    ratio: float
    ratio_from: float
    ratio_to: float
    pairs: int
    requests: int

    def __str__(self) -> str:
        """In words."""
        return (
            f"p50 {self.first_ms:.4f} ms by {self.second_ms:.4f} ms, {self.requests} requests; median ratio of "
            f"{self.pairs} pairs of turns {self.ratio:.4f}, half of them from {self.ratio_from:.3f} to "
            f"{self.ratio_to:.3f}"
        )


def summary(pairs: Sequence[Pair]) -> Summary:
    """What pairs of turns say together."""
    low, middle, high = map(float, np.percentile([pair.ratio for pair in pairs], [25, 50, 75]))
    first_ms = float(np.median([pair.first_ms for pair in pairs]))
    second_ms = float(np.median([pair.second_ms for pair in pairs]))
    requests = sum(pair.requests for pair in pairs)
    return Summary(first_ms, second_ms, middle, low, high, len(pairs), requests)


def main() -> int:
    """Measures, prints, writes; returns the exit status."""
    parser = argparse.ArgumentParser(description="What metrics cost a request.")
    parser.add_argument("--starts", type=int, default=4, help="of both services, for each figure")
    parser.add_argument("--pairs", type=int, default=60, help="of turns, for each start")
    parser.add_argument("--json", type=Path, default=RESULTS / "metrics_cost.json")
    options = parser.parse_args()
    lines, wrong, result = [], 0, {}
    ratio = 0.0
    for name, second_counts in (("on by on (the noise)", True), ("on by off", False)):
        pairs: list[Pair] = []
        starts = []
        for start in range(options.starts):
            found, bad = start_and_compare(start, options.pairs, second_counts=second_counts)
            pairs += found
            wrong += bad
            starts.append(asdict(summary(found)))
            print(f"{name}: start {start + 1} of {options.starts} done", file=sys.stderr)
        together = summary(pairs)
        ratio = together.ratio
        lines.append(f"{name}: {together}")
        result[name] = {"together": asdict(together), "starts": starts}
    met = ratio <= MAX_RATIO
    lines.append(f"at most {MAX_RATIO}: {'met' if met else 'MISSED'}")
    if wrong:
        lines.append(f"{wrong} answers were wrong")
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.metrics_cost", *sys.argv[1:]])
    facts = run_facts(command)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"facts": facts, "summary": lines, "figures": result}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(f"wrote {options.json.name}")
    return 0 if met and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
