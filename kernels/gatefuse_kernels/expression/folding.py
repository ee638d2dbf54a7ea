"""Arithmetic between constants, done once, in float64. No torch."""

import math
import operator
import struct
from collections.abc import Callable


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _gelu_tanh(x: float) -> float:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _fp32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def _bf16(x: float) -> float:
    (bits,) = struct.unpack("I", struct.pack("f", x))
    # Half of the last kept bit, less one where that bit is 0: ties go to even.
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", bits))[0])


def _fp16(x: float) -> float:
    # By way of float32, as the kernels compute.
    return float(struct.unpack("e", struct.pack("e", _fp32(x)))[0])


_FOLD: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": math.pow,
    "neg": operator.neg,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "min": min,
    "max": max,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "abs": abs,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
    "erf": math.erf,
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * math.erfc(-x * math.sqrt(0.5)),
    "gelu_tanh": _gelu_tanh,
    "softplus": lambda x: x if x > 20 else math.log1p(math.exp(x)),
    "fp32": _fp32,
    "bf16": _bf16,
    "fp16": _fp16,
}


def fold(op: str, operands: tuple[float, ...]) -> float | bool:
    """The value of `op` on constants; a bool for a comparison.

    Raises:
        ArithmeticError: the value is not a finite number.
    """
    try:
        value = _FOLD[op](*operands)
    except (ValueError, struct.error) as error:
        raise ArithmeticError(str(error)) from error
    if not math.isfinite(value):
        raise ArithmeticError(f"it is {value}")
    return value
