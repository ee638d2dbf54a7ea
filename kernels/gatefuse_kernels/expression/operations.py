"""The closed table of what an expression may compute: names, operands, kinds, nominal FLOPs. No torch."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a value is."""

    NUMBER = "number"
    BOOL = "truth value"


@dataclass(frozen=True, slots=True)
class Operation:
    """One elementwise operation.

    Attributes:
        operands: the kind of each operand.
        result: the kind of the result.
        flops: nominal floating-point operations an element: each of the additions, products,
            divisions, comparisons, selections and elementary functions in its definition is one.
        commutes: whether its two operands may change places.
        is_function: whether an expression calls it by its name; others have a sign of their own.
    """

    operands: tuple[Kind, ...]
    result: Kind
    flops: int
    commutes: bool = False
    is_function: bool = False


def _sign(flops: int, *, operands: int = 2, commutes: bool = False) -> Operation:
    return Operation((Kind.NUMBER,) * operands, Kind.NUMBER, flops, commutes)


def _function(flops: int, *, operands: int = 1, commutes: bool = False) -> Operation:
    return Operation((Kind.NUMBER,) * operands, Kind.NUMBER, flops, commutes, is_function=True)


def _comparison(*, commutes: bool = False) -> Operation:
    return Operation((Kind.NUMBER, Kind.NUMBER), Kind.BOOL, 1, commutes)


OPERATIONS: dict[str, Operation] = {
    "add": _sign(1, commutes=True),
    "sub": _sign(1),
    "mul": _sign(1, commutes=True),
    "div": _sign(1),
    "pow": _sign(1),
    "neg": _sign(1, operands=1),
    "lt": _comparison(),
    "le": _comparison(),
    "gt": _comparison(),
    "ge": _comparison(),
    "eq": _comparison(commutes=True),
    "ne": _comparison(commutes=True),
    "and": Operation((Kind.BOOL, Kind.BOOL), Kind.BOOL, 1, commutes=True),
    "where": Operation(
        (Kind.BOOL, Kind.NUMBER, Kind.NUMBER), Kind.NUMBER, flops=1, is_function=True
    ),
    "min": _function(1, operands=2, commutes=True),
    "max": _function(1, operands=2, commutes=True),
    "clamp": _function(2, operands=3),
    "abs": _function(1),
    "exp": _function(1),
    "log": _function(1),
    "sqrt": _function(1),
    "rsqrt": _function(1),
    "sigmoid": _function(3),
    "tanh": _function(1),
    "erf": _function(1),
    "relu": _function(1),
    "silu": _function(4),
    "gelu": _function(5),
    "gelu_tanh": _function(8),
    "softplus": _function(3),
    "fp32": _function(0),
    "bf16": _function(0),
    "fp16": _function(0),
}
"""Every operation by name. `gelu` is the erf form; `fp32`, `bf16` and `fp16` round to that type."""

FUNCTIONS = tuple(name for name, each in OPERATIONS.items() if each.is_function)
"""What an expression may call."""

CASTS = ("fp32", "bf16", "fp16")
"""The functions that round to a type."""
