"""The elementwise gate against a copy that moves as many bytes."""

import math
from functools import partial

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.bench.capture import capture_call
from gatefuse_kernels.bench.results import GateResult
from gatefuse_kernels.bench.streams import as_words, launch_copy
from gatefuse_kernels.bench.timing import Call, Pace, take_turns
from gatefuse_kernels.reference import activate, relative_error
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.swiglu.gate import launch_gate

ERROR_LIMIT = {DType.BF16: 1.7e-3, DType.FP16: 2.2e-4, DType.FP32: 1e-6}
"""What one rounding of the answer may lose."""

_COLUMNS = 16384
_CHECKED_ROWS = 64


def measure_gate(elements: int, dtype: DType, pace: Pace) -> GateResult | None:
    """Time silu(gate) * up over `[elements / 16384, 16384]`; None if its answer is wrong.

    One set of operands is enough: it is several times larger than L2.
    """
    rows = max(1, elements // _COLUMNS)
    generator = torch.Generator("cuda").manual_seed(0)
    gate, up, out = (
        torch.randn(
            rows, _COLUMNS, generator=generator, device="cuda", dtype=dtypes.to_torch(dtype)
        )
        for _ in range(3)
    )
    replay = capture_call(partial(launch_gate, gate, up, out, Activation.SILU))
    out.fill_(math.nan)
    replay()
    error = _error(gate, up, out)
    if not (error <= ERROR_LIMIT[dtype] and out.isfinite().all()):
        return None
    ours, *copied = take_turns([[replay], *([copy] for copy in copies_like(gate, up))], pace)
    best = min(copied, key=lambda found: found.median_us)
    return GateResult(dtype.value, rows * _COLUMNS, ours, best, error)


def copies_like(gate: torch.Tensor, up: torch.Tensor) -> list[Call]:
    """Copies that move as many bytes as the gate of two contiguous operands, each in its own way.

    Two operands in and one out: that is a copy of one and a half.
    """
    return copy_calls(torch.cat((gate.view(-1), up.view(-1)[: up.numel() // 2])))


def copy_calls(memory: torch.Tensor) -> list[Call]:
    """Copies of one-dimensional memory to other memory: torch's, then a kernel of ours."""
    source = as_words(memory)
    target = torch.empty_like(source)
    return [
        capture_call(partial(target.copy_, source)),
        capture_call(partial(launch_copy, source, target)),
    ]


def _error(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> float:
    """Of rows spread over all of them, the last one with them."""
    some = torch.linspace(0, gate.shape[0] - 1, _CHECKED_ROWS, device=gate.device).long()
    exact = activate(gate[some].double(), Activation.SILU) * up[some].double()
    return relative_error(out[some], exact)
