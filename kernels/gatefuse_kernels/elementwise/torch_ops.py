"""The operations of expressions as torch's own, out of place: what `compiled` traces and blocks run."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional

from gatefuse_kernels.expression import CASTS, Operand, Program

Value = torch.Tensor | float


def _minimum(a: Value, b: Value) -> torch.Tensor:
    if isinstance(a, float):
        a, b = b, a
    assert isinstance(a, torch.Tensor)
    return torch.clamp_max(a, b) if isinstance(b, float) else torch.minimum(a, b)


def _maximum(a: Value, b: Value) -> torch.Tensor:
    if isinstance(a, float):
        a, b = b, a
    assert isinstance(a, torch.Tensor)
    return torch.clamp_min(a, b) if isinstance(b, float) else torch.maximum(a, b)


def _power(x: Value, exponent: Value) -> torch.Tensor:
    # What torch's own kernel takes for these; a compiler may take pow, which knows a root of -inf.
    if isinstance(x, torch.Tensor) and isinstance(exponent, float):
        if exponent == 0.5:
            return torch.sqrt(x)
        if exponent == -0.5:
            return torch.rsqrt(x)
    power: torch.Tensor = x**exponent
    return power


def _clamp(x: Value, low: Value, high: Value) -> torch.Tensor:
    if isinstance(x, float) and isinstance(low, float):
        return _minimum(max(x, low), high)
    return _minimum(_maximum(x, low), high)


APPLY: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": _power,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": torch.logical_and,
    "where": torch.where,
    "min": _minimum,
    "max": _maximum,
    "clamp": _clamp,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda a: functional.gelu(a, approximate="tanh"),
    "softplus": functional.softplus,
    "fp32": lambda a: a.to(torch.float32),
    "bf16": lambda a: a.to(torch.bfloat16),
    "fp16": lambda a: a.to(torch.float16),
}
"""By the names of `OPERATIONS`; an operand is a tensor or a float, never all of them floats."""

_GELU_IS_X = 100.0


def _gelu(x: torch.Tensor) -> torch.Tensor:
    result = functional.gelu(x)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return result
    # On some CPUs torch takes oneDNN's, to which that of infinity is NaN, and of the largest numbers infinity.
    return torch.where(x > _GELU_IS_X, x, result)


_APPLY_IN_FLOAT32 = APPLY | {"gelu": _gelu}


def evaluate(
    program: Program, tensors: Mapping[str, torch.Tensor], *, in_float32: bool = False
) -> list[Value]:
    """The results of `program`.

    Args:
        program: from `parse_program`.
        tensors: inputs `[M, C]` and vectors `[C]` by name.
        in_float32: every op computes in float32, and only casts inside the expression round; else each op
            computes in the type that torch gives it.
    """
    steps: list[torch.Tensor] = []
    if in_float32:
        tensors = {name: tensor.float() for name, tensor in tensors.items()}

    def value(operand: Operand) -> Value:
        if isinstance(operand, float):
            return operand
        return tensors[operand] if isinstance(operand, str) else steps[operand]

    apply = _APPLY_IN_FLOAT32 if in_float32 else APPLY
    for step in program.steps:
        result = apply[step.op](*map(value, step.operands))
        is_cast = in_float32 and step.op in CASTS
        steps.append(_rounded_for_good(result).float() if is_cast else result)
    return [value(result) for result in program.results]


def _rounded_for_good(cast: torch.Tensor) -> torch.Tensor:
    """The same tensor, by a way that a compiler does not see through: it would drop a cast that another follows."""
    return cast if cast.itemsize > 2 else (cast.view(torch.int16) | 0).view(cast.dtype)


def store(values: Sequence[Value], outputs: Sequence[torch.Tensor]) -> None:
    """Write results out, rounded to the outputs' type; vectors and constants into every row."""
    for value, output in zip(values, outputs, strict=True):
        if isinstance(value, float):
            output.fill_(value)
        else:
            output.copy_(value)
