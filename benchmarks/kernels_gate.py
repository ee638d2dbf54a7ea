"""How the elementwise gate is best cut into programs, beside copies that move as many bytes.

    python -m benchmarks.kernels_gate

Prints microseconds and the share of the best copy's bandwidth for elements and warps of a program,
with both roundings and the costliest activation, at 100 M elements. What it finds is what
`swiglu/gate.py` has as constants.
"""

import argparse
import itertools
from functools import partial

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.bench.capture import capture_call
from gatefuse_kernels.bench.elementwise import copies_like
from gatefuse_kernels.bench.timing import Call, Pace, take_turns
from gatefuse_kernels.shapes import Activation, DType, Rounding
from gatefuse_kernels.swiglu import gate as gate_module
from gatefuse_kernels.swiglu.gate import launch_gate

COLUMNS = 16384
ELEMENTS = (1024, 2048, 4096, 8192)
WARPS = (2, 4, 8)
KINDS = (
    (Activation.SILU, Rounding.FP32_EPILOGUE),
    (Activation.SILU, Rounding.EAGER_EXACT),
    (Activation.GELU, Rounding.FP32_EPILOGUE),
)
PACE = Pace(rounds=60)


def _gate(run: Call, elements: int, warps: int) -> Call:
    gate_module._ELEMENTS, gate_module._WARPS = elements, warps
    return capture_call(run)


def measure(dtype: DType, merged: bool, count: int) -> None:
    """Print one block of the table."""
    rows = count // COLUMNS
    kind = dtypes.to_torch(dtype)
    both = torch.randn(rows, 2 * COLUMNS, device="cuda", dtype=kind)
    gate, up = both.chunk(2, dim=1) if merged else both.view(2, rows, COLUMNS)
    out = torch.empty(rows, COLUMNS, device="cuda", dtype=kind)
    for activation, rounding in KINDS:
        run = partial(launch_gate, gate, up, out, activation, rounding)
        cuts = list(itertools.product(ELEMENTS, WARPS))
        forms = [_gate(run, elements, warps) for elements, warps in cuts]
        copies = copies_like(gate.contiguous(), up.contiguous())
        times = take_turns([[form] for form in (*copies, *forms)], PACE)
        best_us = min(found.median_us for found in times[:2])
        where = "merged" if merged else "apart"
        print(f"{dtype} {where} {activation} {rounding}: copy {best_us:.1f} us")
        for (elements, warps), found in zip(cuts, times[2:], strict=True):
            share = best_us / found.median_us
            print(f"  {elements:5} elements {warps} warps {found.median_us:7.1f} us {share:7.1%}")


def main() -> None:
    """Measure every kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, default=100_000_000)
    count = parser.parse_args().elements
    for dtype, merged in itertools.product((DType.BF16, DType.FP32), (False, True)):
        measure(dtype, merged, count)


if __name__ == "__main__":
    main()
