"""What may come out of a program computed in float32: for each element an interval.

Every step is evaluated in float64 at the ends of its operands' intervals, and its own interval widened by
what float32 arithmetic may lose there. Where an interval cannot tell (a comparison of values that may be
equal, a division by what may be zero) the element is unknown, and so is whatever it leads to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gatefuse_kernels.elementwise.torch_ops import APPLY
from gatefuse_kernels.expression import CASTS, Operand, Program

UNIT = 2.0**-24
TINY = 2.0**-126
LARGEST = torch.finfo(torch.float32).max

_EXACT = {"neg", "abs", "min", "max", "clamp", "where", "relu", *CASTS}
"""Steps whose result is one of their operands', or is rounded itself."""

_UNITS = {"add": 1, "sub": 1, "mul": 1, "div": 4, "sqrt": 2, "rsqrt": 4, "pow": 16}
_FEW_UNITS = 8
_SHORT_UNITS = 2**6
"""Of functions that are rounded to 16 bits afterwards: 2^-18."""

_SLOPES = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
"""The largest slope of functions that turn: what their ends do not show."""

_STRADDLERS = {"div": 1, "pow": 0, "rsqrt": 0, "sqrt": 0, "log": 0}
"""Operands that must be clear of zero, unless they are zero's own exact interval (and then known for some)."""


@dataclass(frozen=True)
class Interval:
    """All values between two tensors, NaN where both are; `unknown` marks what nothing is known of."""

    low: torch.Tensor
    high: torch.Tensor
    unknown: torch.Tensor


def evaluate_exactly(
    program: Program, tensors: Mapping[str, torch.Tensor]
) -> list[torch.Tensor | float]:
    """The results in float64; casts inside the expression round to their type."""
    steps: list[torch.Tensor] = []
    for step in program.steps:
        operands = [
            each
            if isinstance(each, float)
            else tensors[each]
            if isinstance(each, str)
            else steps[each]
            for each in step.operands
        ]
        steps.append(_apply(step.op, operands))
    return [
        each if isinstance(each, float) else tensors[each] if isinstance(each, str) else steps[each]
        for each in program.results
    ]


def intervals(
    program: Program, tensors: Mapping[str, torch.Tensor], *, short: bool
) -> list[Interval]:
    """The interval of each result.

    Args:
        program: what is computed.
        tensors: inputs and vectors by name, of any float dtype.
        short: whether results are rounded to 16 bits, and functions need be no better than 2^-18.
    """
    inputs = {name: _exactly(tensor.double()) for name, tensor in tensors.items()}
    steps: list[Interval] = []

    def of(operand: Operand) -> Interval:
        if isinstance(operand, float):
            return _exactly(torch.tensor(operand, dtype=torch.float32).double())
        return inputs[operand] if isinstance(operand, str) else steps[operand]

    for step in program.steps:
        operands = [of(each) for each in step.operands]
        steps.append(_step(step.op, operands, short))
    return [of(each) for each in program.results]


def assert_within(found: torch.Tensor, interval: Interval, what: str) -> float:
    """Every known element lies within its interval, rounded to its type; returns the known share."""
    low, high = (
        each.float().to(found.dtype).double().expand(found.shape)
        for each in (interval.low, interval.high)
    )
    value = found.double()
    is_nan = low.isnan() & high.isnan()
    right = torch.where(is_nan, value.isnan(), (low <= value) & (value <= high))
    wrong = ~(right | interval.unknown)
    if wrong.any():
        place = int(wrong.view(-1).nonzero()[0])
        is_, least, most = (float(each.reshape(-1)[place].item()) for each in (value, low, high))
        raise AssertionError(f"{what}: element {place} is {is_!r}, not in {least!r} .. {most!r}")
    return 1 - interval.unknown.expand(found.shape).double().mean().item()


def _exactly(value: torch.Tensor) -> Interval:
    return Interval(value, value, torch.zeros_like(value, dtype=torch.bool))


def _apply(op: str, operands: Sequence[torch.Tensor | float]) -> torch.Tensor:
    if op in CASTS:
        (x,) = operands
        assert isinstance(x, torch.Tensor)
        return APPLY[op](x.float()).double()
    if op == "pow" and isinstance(operands[1], torch.Tensor) and operands[1].dim() == 0:
        # A constant exponent is a number to torch, which takes a root for a half.
        exponent = float(operands[1].item())
        return APPLY[op](operands[0], exponent)
    if op in ("min", "max", "clamp"):
        operands = [torch.as_tensor(each, dtype=torch.float64) for each in operands]
    return APPLY[op](*operands)


def _step(op: str, operands: Sequence[Interval], short: bool) -> Interval:
    unknown = torch.zeros((), dtype=torch.bool)
    for each in operands:
        unknown = unknown | each.unknown
    if op == "where":
        return _where(*operands)
    if op in _STRADDLERS:
        divisor = operands[_STRADDLERS[op]]
        touches = (divisor.low <= TINY) & (divisor.high >= -TINY)
        unknown = unknown | (touches & (divisor.low.ne(divisor.high) | divisor.low.eq(0)))
    if op == "mul":
        unknown = unknown | _may_be_zero_times_infinity(*operands)
    ends = [(each.low, each.high) for each in operands]
    corners = torch.stack(
        torch.broadcast_tensors(*(_apply(op, corner) for corner in itertools.product(*ends)))
    )
    if corners.dtype is torch.bool:
        low, high = corners.all(0), corners.any(0)
        if op in ("eq", "ne"):
            a, b = operands
            overlap = (a.low <= b.high) & (b.low <= a.high)
            unknown = unknown | (overlap & ((a.low != a.high) | (b.low != b.high)))
        return Interval(low, high, unknown | (low != high))
    low, high = corners.amin(0), corners.amax(0)
    # A minimum is NaN if anything is.
    unknown = unknown | (low.isnan() & ~corners.isnan().all(0))
    if op == "abs":
        straddles = (operands[0].low < 0) & (operands[0].high > 0)
        low = torch.where(straddles, 0.0, low)
    if op not in _EXACT:
        low, high = _widened(op, low, high, operands[0], short)
    return Interval(_as_float32(low), _as_float32(high), unknown.expand(low.shape))


def _may_be_zero_times_infinity(x: Interval, y: Interval) -> torch.Tensor:
    """A result that may be flushed to zero, times infinity: NaN or infinity."""
    found = torch.zeros((), dtype=torch.bool)
    for a, b in ((x, y), (y, x)):
        touches = (a.low <= TINY) & (a.high >= -TINY) & (a.low != a.high)
        found = found | (touches & (b.low.isinf() | b.high.isinf()))
    return found


def _widened(
    op: str, low: torch.Tensor, high: torch.Tensor, x: Interval, short: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    units = _UNITS.get(op) or (_SHORT_UNITS if short else _FEW_UNITS)
    if short:
        units = max(units, 4)
    lost = units * UNIT
    pad = torch.full_like(low, TINY)
    if op in _SLOPES:
        # 1 + erf and 1 + tanh cancel on the left; so the error is one of x.
        size = torch.maximum(x.low.abs(), x.high.abs())
        pad = pad + _SLOPES[op] * (x.high - x.low) + _FEW_UNITS * UNIT * size
    pad = torch.where(pad.isfinite(), pad, TINY)
    wider = low - lost * low.abs() - pad, high + lost * high.abs() + pad
    return low.where(~low.isfinite(), wider[0]), high.where(~high.isfinite(), wider[1])


def _where(condition: Interval, yes: Interval, no: Interval) -> Interval:
    surely, maybe = condition.low, condition.high
    unsure = condition.unknown | (surely != maybe)
    low = torch.where(surely, yes.low, no.low)
    high = torch.where(surely, yes.high, no.high)
    either_low, either_high = torch.minimum(yes.low, no.low), torch.maximum(yes.high, no.high)
    chosen_unknown = torch.where(surely, yes.unknown, no.unknown)
    both_unknown = yes.unknown | no.unknown | either_low.isnan() | either_high.isnan()
    return Interval(
        torch.where(unsure, either_low, low),
        torch.where(unsure, either_high, high),
        torch.where(unsure, both_unknown, chosen_unknown),
    )


def _as_float32(value: torch.Tensor) -> torch.Tensor:
    """Past the largest float32 there is only infinity."""
    return torch.where(value.abs() > LARGEST, torch.sign(value) * math.inf, value)
