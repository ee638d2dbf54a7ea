"""What a launch without a CUDA graph costs the host: by direct launches and by Triton's own, in one run.

Each MLP is built twice, once with `direct_launch` and once without, and the two take turns; the answers must have the
same bits. The device is kept busy with something else meanwhile, so that nothing is waited for. Nothing else should use
the host's cores.

    python -m benchmarks.launch_cost

Exits 1 if an answer differed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch

from gatefuse.commands.loadtest.facts import run_facts
from gatefuse_kernels.bench.capture import ours
from gatefuse_kernels.bench.cases import SHAPES
from gatefuse_kernels.bench.copies import make_copy
from gatefuse_kernels.bench.timing import host_time
from gatefuse_kernels.launch.direct_launch import direct_launch
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import Mlp
from gatefuse_kernels.shapes import DType, parse_shape
from gatefuse_kernels.weights.packed import MlpWeights

ROWS = (1, 4, 16, 64, 128, 256, 1024, 4096)
TURNS = 5
# Calls are counted by it: more of them than the launch queue holds would be waited for.
DEVICE_US = 150.0
RESULTS = Path(__file__).parent / "results"


def build(weights: MlpWeights, x: torch.Tensor, out: torch.Tensor, *, direct: bool) -> Mlp:
    """An MLP whose kernels have all been launched once, and so know their way."""
    kept = direct_launch if direct else lambda *_: None
    with patch("gatefuse_kernels.launch.jit.direct_launch", kept):
        mlp = ours(weights, x.shape[0], Ledger(), deterministic=False)
        mlp(x, out)
        mlp(x, out)
    return mlp


def compare(weights: MlpWeights, rows: int) -> tuple[float, float, bool]:
    """Microseconds of the host for one call, direct and Triton's; and whether the answers are the same."""
    like = weights.down
    x = torch.randn(rows, weights.shape.hidden, dtype=like.dtype, device=like.device)
    outs = torch.empty_like(x), torch.empty_like(x)
    mlps = [
        build(weights, x, out, direct=direct)
        for out, direct in zip(outs, (True, False), strict=True)
    ]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for mlp, out, own in zip(mlps, outs, times, strict=True):
            own.append(host_time(partial(mlp, x, out), DEVICE_US, 3).median_us)
    return median(times[0]), median(times[1]), torch.equal(*outs)


def main() -> int:
    """Measures, prints, writes; returns the exit status."""
    parser = argparse.ArgumentParser(description="What a launch costs the host.")
    parser.add_argument("--shapes", default=",".join(map(str, SHAPES)))
    parser.add_argument("--json", type=Path, default=RESULTS / "launch_cost.json")
    options = parser.parse_args()
    figures, differ = [], 0
    with torch.inference_mode():
        for shape in map(parse_shape, options.shapes.split(",")):
            weights = make_copy(shape, DType.BF16, torch.device("cuda")).weights
            for rows in ROWS:
                direct_us, tritons_us, is_same = compare(weights, rows)
                differ += not is_same
                figures.append(
                    {
                        "shape": str(shape),
                        "rows": rows,
                        "direct_us": direct_us,
                        "tritons_us": tritons_us,
                        "ratio": direct_us / tritons_us,
                    }
                )
                print(
                    f"{shape!s:12} {rows:5} rows: direct {direct_us:6.1f} us, Triton's {tritons_us:6.1f} us, "
                    f"ratio {direct_us / tritons_us:.2f}{'' if is_same else ', ANSWERS DIFFER'}"
                )
            del weights
    facts = run_facts(shlex.join(["python", "-m", "benchmarks.launch_cost", *sys.argv[1:]]))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"facts": facts, "figures": figures}, indent=1) + "\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
