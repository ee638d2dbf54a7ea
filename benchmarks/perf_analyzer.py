"""NVIDIA's perf_analyzer, unchanged, against a running server: what it reports, and whether the server agrees.

perf_analyzer counts the requests that it had answered in its windows, and asks the server's ModelStatistics how many it
answered in the same time. Both must agree within 2 %, in every way of sending: single calls and a stream, with rows in
messages and in system shared memory (where the server allows it), at fixed concurrency and at a fixed rate.

    python -m benchmarks.perf_analyzer --url localhost:8001 --tool '/path/to/perf_analyzer' llama-ffn silu-gate

The tool is PERF_ANALYZER, or perf_analyzer on the PATH, unless said otherwise. Exits 1 if something failed or does not
agree, 69 if the tool or the server is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from gatefuse.client.blocking import Client
from gatefuse.client.metadata import ModelMetadata
from gatefuse.commands.conventions import EXIT_UNAVAILABLE

MAX_DISAGREEMENT = 0.02
CONCURRENCIES = (1, 4, 32)
RATES = (50, 200)
WAYS = {
    "unary": (),
    "stream": ("--streaming",),
    "shared memory": ("--shared-memory=system",),
    "stream, shared memory": ("--streaming", "--shared-memory=system"),
}
COLUMNS_IF_ANY = 256
OUTPUT_BYTES_PER_ELEMENT = 4  # the widest of our datatypes


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the tool: a model, a way of sending, and a load."""

    model: str
    way: str
    load: str

    def arguments(self) -> list[str]:
        """What the tool is told."""
        return ["-m", self.model, *WAYS[self.way], self.load]


@dataclass(frozen=True, slots=True)
class Report:
    """What the tool saw from outside, and what the server told it; times in microseconds."""

    requests: int
    requests_per_s: float
    latency_us: float
    server_requests: int
    server_inferences: int
    server_executions: int
    server_latency_us: float

    @property
    def disagreement(self) -> float:
        """The difference between both counts, as a part of the larger."""
        larger = max(self.requests, self.server_requests)
        return abs(self.requests - self.server_requests) / larger if larger else 1.0


PATTERNS = {
    "requests": r"Client:.*?Request count: (\d+)",
    "requests_per_s": r"Client:.*?Throughput: ([\d.]+) infer/sec",
    "latency_us": r"Client:.*?Avg latency: (\d+) usec",
    "server_requests": r"Server:.*?Successful request count: (\d+)",
    "server_inferences": r"Server:.*?Inference count: (\d+)",
    "server_executions": r"Server:.*?Execution count: (\d+)",
    "server_latency_us": r"Server:.*?Avg request latency: (\d+) usec",
}


def parse(output: str) -> Report:
    """Returns what the tool printed about its one load. Raises ValueError, with the output, if that is not there."""
    found: dict[str, float] = {}
    for name, pattern in PATTERNS.items():
        match = re.search(pattern, output, re.DOTALL)
        if match is None:
            raise ValueError(f"no {name} in what perf_analyzer printed:\n{output[-4000:]}")
        found[name] = float(match[1])
    counts = ("requests", "server_requests", "server_inferences", "server_executions")
    return Report(**{name: int(v) if name in counts else v for name, v in found.items()})  # type: ignore[arg-type]


def model_options(metadata: ModelMetadata) -> Iterator[str]:
    """The tool's options for a model: a width where it takes any, and a layer where it has several."""
    layers = metadata.properties.get("layers", "").split(",")
    if len(layers) > 1:
        yield f"--request-parameter=layer:{layers[0]}:int"
    for tensor in metadata.inputs:
        if tensor.shape[-1] < 0:
            yield f"--shape={tensor.name}:{COLUMNS_IF_ANY}"


@dataclass(frozen=True, slots=True)
class Tool:
    """How perf_analyzer is called."""

    command: Sequence[str]
    url: str
    window_ms: int
    rows: int

    def run(self, case: Case, metadata: ModelMetadata) -> Report:
        """Runs one case. Raises ValueError if the tool failed or printed no report."""
        command = [
            *self.command,
            *("-u", self.url, "-i", "grpc", "-p", str(self.window_ms)),
            # One window of a machine that does other things besides: stable or not, it is reported.
            *("-s", "999", "-r", "3"),
            *("-b", str(self.rows)),
            *model_options(metadata),
            *case.arguments(),
        ]
        if "--shared-memory=system" in command:
            width = max(metadata.outputs[0].shape[-1], COLUMNS_IF_ANY)
            size = self.rows * width * OUTPUT_BYTES_PER_ELEMENT
            command.append(f"--output-shared-memory-size={size}")
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if result.returncode != 0:
            text = (result.stdout + result.stderr)[-4000:]
            raise ValueError(f"{shlex.join(command)} ended with {result.returncode}:\n{text}")
        return parse(result.stdout)


def find_tool(given: str | None) -> list[str] | None:
    """The command of the tool; None where there is none."""
    command = shlex.split(given or os.environ.get("PERF_ANALYZER", "perf_analyzer"))
    return command if command and shutil.which(command[0]) else None


def cases(
    models: Sequence[str], shared_memory: bool, concurrencies: Sequence[int], rates: Sequence[int]
) -> Iterator[Case]:
    """Every model in every way, at every load."""
    loads = [f"--concurrency-range={count}" for count in concurrencies]
    loads += [f"--request-rate-range={rate}" for rate in rates]
    ways = [way for way in WAYS if shared_memory or "shared memory" not in way]
    for model, way, load in product(models, ways, loads):
        yield Case(model, way, load)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs every case and prints a line for each; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--url", default="127.0.0.1:8001")
    parser.add_argument("--tool", help="the command, split as a shell does")
    parser.add_argument("--window-ms", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=1, help="rows of each request")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    command = find_tool(options.tool)
    if command is None:
        print("perf_analyzer is not there: set PERF_ANALYZER, or --tool", file=sys.stderr)
        return EXIT_UNAVAILABLE
    with Client(options.url, timeout_s=10) as client:
        if not client.is_ready():
            print(f"no server is ready at {options.url}", file=sys.stderr)
            return EXIT_UNAVAILABLE
        shared_memory = "system_shared_memory" in client.metadata().extensions
        metadata = {model: client.model_metadata(model) for model in options.models}
    tool = Tool(command, options.url, options.window_ms, options.rows)
    results = []
    wrong = 0
    for case in cases(options.models, shared_memory, CONCURRENCIES, RATES):
        try:
            report = tool.run(case, metadata[case.model])
        except ValueError as error:
            print(f"{case}: {error}", file=sys.stderr)
            wrong += 1
            continue
        results.append(asdict(case) | asdict(report) | {"disagreement": report.disagreement})
        agrees = report.disagreement <= MAX_DISAGREEMENT
        wrong += not agrees
        print(_line(case, report) + ("" if agrees else "  DOES NOT AGREE"), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(wrong > 0)


def _line(case: Case, report: Report) -> str:
    return (
        f"{case.model:16} {case.way:22} {case.load:26} "
        f"{report.requests_per_s:9.1f} infer/s {report.latency_us:9.0f} us "
        f"counted {report.requests} / {report.server_requests}"
    )


if __name__ == "__main__":
    sys.exit(main())
