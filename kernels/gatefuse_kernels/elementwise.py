"""Elementwise expressions as unfused torch ops: one kernel per op, each reading and writing all."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import torch

from gatefuse_kernels import dtypes, traffic
from gatefuse_kernels.expression import Expression, Operand, Step
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_pair
from gatefuse_kernels.shapes import DType, check_max_rows

_Unary = Callable[[torch.Tensor, torch.Tensor], object]
_Binary = Callable[..., object]

_UNARY: dict[str, _Unary] = {
    "abs": lambda a, out: torch.abs(a, out=out),
    # torch would copy by a memcpy on CUDA, which is no kernel; times one is exact and is one.
    "copy": lambda a, out: torch.mul(a, 1, out=out) if a.is_cuda else out.copy_(a),
    "exp": lambda a, out: torch.exp(a, out=out),
    "gelu": lambda a, out: torch.ops.aten.gelu.out(a, approximate="none", out=out),
    "gelu_tanh": lambda a, out: torch.ops.aten.gelu.out(a, approximate="tanh", out=out),
    "neg": lambda a, out: torch.neg(a, out=out),
    "relu": lambda a, out: torch.clamp_min(a, 0, out=out),
    "sigmoid": lambda a, out: torch.sigmoid(a, out=out),
    "silu": lambda a, out: torch.ops.aten.silu.out(a, out=out),
    "tanh": lambda a, out: torch.tanh(a, out=out),
}
_BINARY: dict[str, _Binary] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}


class Elementwise(Protocol):
    """One expression ready to run; the protocol of `Mlp` with x and out `[M, C]`, any C."""

    @property
    def backend(self) -> str:
        """What runs."""

    @property
    def description(self) -> str:
        """One sentence: what runs."""

    def padded_rows(self, rows: int) -> int:
        """Rows really computed for `rows` given ones."""

    def warm_up(self) -> None:
        """Nothing is compiled in this version."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute `out = expression(x)` on the current stream."""


def build_elementwise(
    expression: Expression, *, ledger: Ledger, dtype: DType, max_rows: int
) -> Elementwise:
    """Make a runnable expression; one torch kernel per op.

    Args:
        expression: from `parse_expression`.
        ledger: counts each launch.
        dtype: element type of x, out and every intermediate.
        max_rows: the largest M of a call.

    Raises:
        ValueError: `max_rows` is out of range.
    """
    check_max_rows(max_rows)
    return _EagerElementwise(expression, ledger, dtype, max_rows)


class _EagerElementwise:
    """One torch op per step; x and out may be the same tensor only for a single step."""

    backend = "eager"

    def __init__(self, expression: Expression, ledger: Ledger, dtype: DType, max_rows: int) -> None:
        self._expression = expression
        self._ledger = ledger
        self._dtype = dtypes.to_torch(dtype)
        self._max_rows = max_rows
        self._steps = [_bind(step, expression.inputs) for step in expression.steps]

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        count = len(self._expression.steps)
        return f"eager: {self._expression.text} as {count} torch op{'s' * (count > 1)}"

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Nothing to compile."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run the steps; see `Mlp`."""
        columns = x.shape[-1] if x.dim() else 0
        rows = check_pair(x, out, columns, (self._dtype, x.device), self._max_rows)
        if rows == 0 or columns == 0:
            return
        values = [x]
        elements, itemsize = rows * columns, x.element_size()
        last = self._steps[-1]
        for step in self._steps:
            target = out if step is last else torch.empty_like(x)
            step.run(values, target)
            values.append(target)
            self._ledger.count(
                traffic.elementwise_op(step.op, elements, itemsize, step.tensors_read)
            )


@dataclass(frozen=True, eq=False)
class _BoundStep:
    """A step whose operands are looked up once: `run(values, out)`, values being x and the results so far."""

    op: str
    tensors_read: int
    run: Callable[[list[torch.Tensor], torch.Tensor], object]


def _bind(step: Step, inputs: tuple[str, ...]) -> _BoundStep:
    getters = [_getter(operand, inputs) for operand in step.operands]
    tensors_read = sum(not isinstance(operand, float) for operand in step.operands)
    if step.op in _UNARY:
        unary, only = _UNARY[step.op], getters[0]
        return _BoundStep(step.op, tensors_read, lambda values, out: unary(only(values), out))
    binary, (left, right) = _BINARY[step.op], getters
    return _BoundStep(
        step.op,
        tensors_read,
        lambda values, out: binary(left(values), right(values), out=out),
    )


def _getter(
    operand: Operand, inputs: tuple[str, ...]
) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    if isinstance(operand, float):
        # A zero-dimensional CPU tensor rides along as a kernel argument and does not promote.
        scalar = torch.tensor(operand, dtype=torch.float64)
        return lambda values: scalar
    position = inputs.index(operand) if isinstance(operand, str) else operand + len(inputs)
    return itemgetter(position)
