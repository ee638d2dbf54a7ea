"""Rows of a chain's answer against float64, and all of it against itself."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from gatefuse_kernels.bench.elementwise import ERROR_LIMIT
from gatefuse_kernels.elementwise.torch_ops import APPLY, Value, evaluate
from gatefuse_kernels.expression import CASTS, Operand, Program
from gatefuse_kernels.shapes import DType

_CHECKED_ROWS = 64
_OF_FLOAT32 = {DType.BF16: 1.1, DType.FP16: 1.1, DType.FP32: 2.0}
"""How much more a chain may lose than torch's ops do in float32 with one rounding at the end.

In 16 bits that rounding is nearly all, and a second one would show; in float32 every op has its own.
"""


class ChainCheck:
    """The exact answers of some rows, spread over all, the first and the last among them."""

    def __init__(self, program: Program, tensors: Mapping[str, torch.Tensor], dtype: DType) -> None:
        """Compute the truth.

        Args:
            program: what is computed.
            tensors: inputs `[M, C]` and per-column constants `[C]` by name.
            dtype: theirs, and of the answers.
        """
        first = tensors[program.inputs[0]]
        self._rows = torch.linspace(0, len(first) - 1, _CHECKED_ROWS, device=first.device).long()
        some = {
            name: tensor[self._rows] if name in program.inputs else tensor
            for name, tensor in tensors.items()
        }
        like = some[program.inputs[0]]
        self._exact = [_whole(each, like, torch.float64) for each in exact_values(program, some)]
        rounded = [
            _whole(each, like, like.dtype) for each in evaluate(program, some, in_float32=True)
        ]
        # Where either leaves the type's range there is no error to speak of.
        self._known = [
            exact.to(like.dtype).isfinite() & other.isfinite()
            for exact, other in zip(self._exact, rounded, strict=True)
        ]
        self.limit = max(ERROR_LIMIT[dtype], _OF_FLOAT32[dtype] * self._error(rounded))
        """The largest relative error of a right answer."""

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """Relative Frobenius error of the worst output; infinite if NaN stands where it must not."""
        return self._error([output[self._rows] for output in outputs])

    def _error(self, outputs: Sequence[torch.Tensor]) -> float:
        worst = 0.0
        for output, exact, known in zip(outputs, self._exact, self._known, strict=True):
            truth = exact[known]
            lost = torch.linalg.vector_norm(output[known].double() - truth).item()
            size = torch.linalg.vector_norm(truth).item()
            error = lost / size if size else lost
            worst = max(worst, math.inf if math.isnan(error) else error)
        return worst


def exact_values(program: Program, tensors: Mapping[str, torch.Tensor]) -> list[Value]:
    """The results in float64; casts inside the program round to their type."""
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    steps: list[torch.Tensor] = []

    def value(operand: Operand) -> Value:
        if isinstance(operand, float):
            return operand
        return exact[operand] if isinstance(operand, str) else steps[operand]

    for step in program.steps:
        result = APPLY[step.op](*map(value, step.operands))
        steps.append(result.double() if step.op in CASTS else result)
    return [value(result) for result in program.results]


def is_repeatable(replay: Callable[[], object], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether a call writes the same bits over NaN as over zeros: every element, each time alike."""
    bits = []
    for filling in (math.nan, 0.0):
        for output in outputs:
            output.fill_(filling)
        replay()
        bits.append([output.view(torch.uint8).clone() for output in outputs])
    return all(map(torch.equal, *bits))


def _whole(value: Value, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(value, float):
        return torch.full_like(like, value, dtype=dtype)
    return value.to(dtype).expand(like.shape)
