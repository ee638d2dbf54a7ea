"""The fused MLP's CPU form against eager: both in one run, call by call in turn.

    python benchmarks/kernels_cpu_fused.py [--json benchmarks/results/NAME.json]

Prints the median of each and the median of the paired ratios (eager / fused; above 1 the fused form
is faster). Refuses to print a figure whose answer misses its accuracy gate.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gatefuse_kernels import reference
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.weights.random_weights import random_source

SHAPES = ((256, 688), (1024, 4096))
ROWS = (1, 4, 16, 64, 256)


def main() -> int:
    """Run every case; 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--seconds", type=float, default=1.0, help="per case (default 1)")
    parser.add_argument("--dtypes", default="bf16,fp16,fp32")
    arguments = parser.parse_args()
    results = []
    print(f"{'dtype':6}{'H x I':12}{'rows':>5}{'eager us':>12}{'fused us':>12}{'ratio':>8}")
    for dtype in map(DType, arguments.dtypes.split(",")):
        for hidden, intermediate in SHAPES:
            weights = random_source(hidden, intermediate, 1, 0).load(0, dtype, torch.device("cpu"))
            for rows in ROWS:
                case = measure(weights, rows, arguments.seconds)
                if case is None:
                    print(f"{dtype} {weights.shape} {rows} rows: wrong answer", file=sys.stderr)
                    return 1
                eager_us, fused_us, ratio = case
                print(
                    f"{dtype:6}{weights.shape!s:12}{rows:5}"
                    f"{eager_us:12.0f}{fused_us:12.0f}{ratio:8.2f}"
                )
                results.append(
                    {
                        "dtype": dtype.value,
                        "hidden": hidden,
                        "intermediate": intermediate,
                        "rows": rows,
                        "eager_us": eager_us,
                        "fused_us": fused_us,
                        "eager_over_fused": ratio,
                    }
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "cases": results}, indent=1))
    return 0


def measure(weights: MlpWeights, rows: int, seconds: float) -> tuple[float, float, float] | None:
    """Median eager_us, fused_us and paired ratio; None if the fused answer is wrong."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, weights.shape.hidden, generator=generator).to(weights.down.dtype)
    out = torch.empty_like(x)
    eager, fused = (
        build_mlp(backend, weights, ledger=Ledger(), max_rows=rows)
        for backend in ("eager", "fused")
    )
    eager.warm_up()
    fused.warm_up()
    fused(x, out)
    if not reference.measure_accuracy(out, x, weights).is_fused_grade:
        return None
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(pairs) < 5:
        pairs.append((time_us(eager, x, out), time_us(fused, x, out)))
    return (
        statistics.median(first for first, _ in pairs),
        statistics.median(second for _, second in pairs),
        statistics.median(first / second for first, second in pairs),
    )


def time_us(
    mlp: Callable[[torch.Tensor, torch.Tensor], None], x: torch.Tensor, out: torch.Tensor
) -> float:
    """One call, in microseconds."""
    start = time.perf_counter()
    mlp(x, out)
    return (time.perf_counter() - start) * 1e6


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    raise SystemExit(main())
