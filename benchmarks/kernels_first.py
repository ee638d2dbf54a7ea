"""fused, eager and compiled MLPs on one GPU: CUDA-graph replays, in one run, weights cold in L2.

    python benchmarks/kernels_first.py [--json benchmarks/results/NAME.json] [--rows 1,16,256]

Several copies of the weights take turns, more bytes than L2 holds, so that each replay streams them
from memory as a model's successive layers would. The forms take turns, too, so that clocks and
heat fall on all alike. Beside them: the time of one kernel that only reads the same bytes. A form
whose answer misses its accuracy gate stops the run before any figure is printed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gatefuse_kernels import reference, traffic
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.graphs import GraphedMlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.weights import random_source

FORMS = ("fused", "eager", "compiled")
EAGER_ERROR_LIMIT = {DType.BF16: 4.2e-3, DType.FP16: 5.4e-4, DType.FP32: 1e-5}
"""What five separately rounded ops may lose; kernels that round once are held to less."""


@dataclass(frozen=True)
class Form:
    """One backend's graphs, one for each copy of the weights."""

    graphs: list[GraphedMlp]
    launches: int
    error: float


def main() -> int:
    """Measure every row count; 1 if an answer is wrong."""
    arguments = parse_arguments()
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 1
    shape = MlpShape(arguments.hidden, arguments.intermediate)
    dtype = DType(arguments.dtype)
    copies = weight_copies(shape, dtype)
    floor_us = read_floor_us(copies, arguments.rounds)
    cases = []
    for rows in map(int, arguments.rows.split(",")):
        case = measure(copies, rows, arguments.rounds)
        if case is None:
            return 1
        cases.append(case)
    print(f"{torch.cuda.get_device_name()}, {shape} {dtype}, {len(copies)} copies of the weights")
    print(f"one launch that reads the weights: {floor_us:.1f} us")
    print(f"{'rows':>5}" + "".join(f"{name + ' us':>14}{'launches':>9}" for name in FORMS))
    for case in cases:
        print(
            f"{case['rows']:>5}"
            + "".join(f"{case[f'{n}_us']:>14.1f}{case[f'{n}_launches']:>9}" for n in FORMS)
        )
    if arguments.json:
        report = {
            "command": command(arguments),
            "machine": machine(),
            "shape": str(shape),
            "dtype": dtype.value,
            "weight_copies": len(copies),
            "read_floor_us": floor_us,
            "cases": cases,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--dtype", default="bf16", choices=[dtype.value for dtype in DType])
    parser.add_argument("--rounds", type=int, default=200, help="timed rounds over all copies")
    return parser.parse_args()


def command(arguments: argparse.Namespace) -> str:
    """What was run, less where the figures went."""
    given = {name: value for name, value in vars(arguments).items() if name != "json"}
    return " ".join(
        ("python benchmarks/kernels_first.py", *(f"--{k} {v}" for k, v in given.items()))
    )


def weight_copies(shape: MlpShape, dtype: DType) -> list[MlpWeights]:
    """Equal weights in different memory, together more than four times L2."""
    device = torch.device("cuda")
    first = random_source(shape.hidden, shape.intermediate, 1, 0).load(0, dtype, device)
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    count = max(3, -(-4 * l2_bytes // first.nbytes))
    return [first] + [
        MlpWeights(first.gate_up.clone(), first.down.clone(), first.activation)
        for _ in range(count - 1)
    ]


def read_floor_us(copies: list[MlpWeights], rounds: int) -> float:
    """Median time of one kernel that reads a copy's bytes and keeps only a sum a row block.

    One copy is laid out as `[blocks, 2^16]` int32 and reduced along the long side, which is
    memory-bound; what is written is below a thousandth of what is read.
    """
    flat = [torch.cat((w.gate_up.view(-1), w.down.view(-1))).view(torch.int32) for w in copies]
    width = 1 << 16
    views = [one[: one.numel() // width * width].view(-1, width) for one in flat]
    sums = torch.empty(views[0].shape[0], dtype=torch.int32, device="cuda")

    def graph_of(view: torch.Tensor) -> torch.cuda.CUDAGraph:
        torch.amax(view, dim=1, out=sums)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.amax(view, dim=1, out=sums)
        return graph

    graphs = [graph_of(view) for view in views]
    scale = flat[0].numel() / views[0].numel()
    times = timed_rounds([[graph.replay for graph in graphs]], rounds)
    return scale * statistics.median(times[0])


def measure(copies: list[MlpWeights], rows: int, rounds: int) -> dict[str, float | int] | None:
    """The case's figures; None, with a line on stderr, if a form's answer is wrong."""
    forms: dict[str, Form] = {}
    for name in FORMS:
        form = build_form(name, copies, rows)
        dtype = copies[0].dtype
        if form is None:
            print(f"{name}, {rows} rows, {dtype}: the answer misses its gate", file=sys.stderr)
            return None
        forms[name] = form
    calls: list[list[Callable[[], object]]] = [
        [partial(graph.replay, rows) for graph in form.graphs] for form in forms.values()
    ]
    times = timed_rounds(calls, rounds)
    case: dict[str, float | int] = {"rows": rows}
    for (name, form), measured in zip(forms.items(), times, strict=True):
        case[f"{name}_us"] = statistics.median(measured)
        case[f"{name}_p10_us"] = statistics.quantiles(measured, n=10)[0]
        case[f"{name}_p90_us"] = statistics.quantiles(measured, n=10)[-1]
        case[f"{name}_launches"] = form.launches
        case[f"{name}_error"] = form.error
    shape, itemsize = copies[0].shape, copies[0].dtype.itemsize
    case["fused_bytes"] = sum(part.bytes_moved for part in traffic.fused_mlp(shape, rows, itemsize))
    case["eager_bytes"] = sum(part.bytes_moved for part in traffic.eager_mlp(shape, rows, itemsize))
    return case


def build_form(name: str, copies: list[MlpWeights], rows: int) -> Form | None:
    """Capture one bucket of exactly `rows` for each copy, and check each copy's answer."""
    ledger, like = Ledger(), copies[0].down
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, like.shape[0], generator=generator).to(like.device, like.dtype)
    out = torch.empty_like(x)
    pool = torch.cuda.graph_pool_handle()
    graphs: list[GraphedMlp] = []
    worst = 0.0
    for weights in copies:
        mlp = build_mlp(name, weights, ledger=ledger, max_rows=rows)
        graph = GraphedMlp(mlp, x, out, (rows,), ledger, pool)
        graph.capture()
        out.fill_(float("nan"))
        graph.replay(rows)
        torch.cuda.synchronize()
        accuracy = reference.measure_accuracy(out, x, weights)
        is_right = accuracy.error <= EAGER_ERROR_LIMIT[weights.dtype]
        if not is_right or (name == "fused" and not accuracy.is_fused_grade):
            return None
        worst = max(worst, accuracy.error)
        graphs.append(graph)
    return Form(graphs, graphs[0].recipe(rows).launches, worst)


def timed_rounds(
    forms: list[list[Callable[[], object]]], rounds: int, warm_rounds: int = 20
) -> list[list[float]]:
    """Microseconds per call of each form, by CUDA events around one turn over all copies.

    The forms alternate round by round. The stream is kept busy ahead of the events, so that they
    time the device and not the host that feeds it.
    """
    times: list[list[float]] = [[] for _ in forms]
    for number in range(warm_rounds + rounds):
        spans = []
        torch.cuda._sleep(1_000_000)
        for calls in forms:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for call in calls:
                call()
            end.record()
            spans.append((start, end, len(calls)))
        torch.cuda.synchronize()
        if number >= warm_rounds:
            for form, (start, end, count) in zip(times, spans, strict=True):
                form.append(start.elapsed_time(end) * 1000 / count)
    return times


def machine() -> dict[str, object]:
    """What the figures depend on."""
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    raise SystemExit(main())
