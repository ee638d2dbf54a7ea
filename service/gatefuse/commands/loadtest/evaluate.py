"""What an expression should give: its program in float64, with numpy alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatefuse.wire import Datatype, convert, decode
from gatefuse_kernels.expression import Operand, Program

Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def evaluate(
    program: Program, inputs: Mapping[str, NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Returns each output of a program without vectors, of the shape of ``inputs``, which all have one."""
    shape = next(iter(inputs.values())).shape
    results: list[Array] = []

    def value(operand: Operand) -> Array:
        if isinstance(operand, str):
            return inputs[operand]
        return results[operand] if isinstance(operand, int) else np.asarray(operand)

    with np.errstate(all="ignore"):
        for step in program.steps:
            results += [_OPERATIONS[step.op](*map(value, step.operands))]
    return [
        np.broadcast_to(np.asarray(value(result), np.float64), shape) for result in program.results
    ]


def rounded(values: NDArray[np.float32], *datatypes: Datatype) -> NDArray[np.float64]:
    """Returns ``values`` as they are after they were held in each of ``datatypes`` in turn."""
    packed = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    for datatype in datatypes:
        held = convert(packed, Datatype.FP32, datatype)
        packed = convert(held, datatype, Datatype.FP32)
    return decode(packed, Datatype.FP32, values.shape).astype(np.float64)


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


def _cast(datatype: Datatype) -> Callable[[Array], Array]:
    return lambda x: rounded(np.asarray(x, np.float32), datatype)


_OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "neg": np.negative,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "where": np.where,
    "min": np.minimum,
    "max": np.maximum,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "erf": _erf,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "softplus": lambda x: np.logaddexp(0, x),
    "fp32": _cast(Datatype.FP32),
    "bf16": _cast(Datatype.BF16),
    "fp16": _cast(Datatype.FP16),
}
