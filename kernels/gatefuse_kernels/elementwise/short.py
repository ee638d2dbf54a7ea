"""Functions of float32 values for results that are rounded to 16 bits: fewer instructions where it shows.

The errors, 2^-18 relative and mostly far less, vanish in a rounding to bf16 (2^-9) and in nearly every one
to fp16 (2^-12). What is not cheaper at that accuracy is taken from `exact`.
"""

import triton.language as tl

from gatefuse_kernels.elementwise.exact import (
    erf,
    exp,
    log,
    maximum,
    minimum,
    power,
    relu,
    softplus,
    sqrt,
    tanh,
)
from gatefuse_kernels.launch.jit import device
from gatefuse_kernels.swiglu.tiles import activate

__all__ = [
    "divide",
    "erf",
    "exp",
    "gelu",
    "gelu_tanh",
    "log",
    "maximum",
    "minimum",
    "power",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "softplus",
    "sqrt",
    "tanh",
]


@device
def divide(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """X / y, within two units in the last place of a float32."""
    return x / y


@device
def rsqrt(x: tl.tensor) -> tl.tensor:
    """1 / sqrt(x)."""
    return 1.0 / tl.sqrt_rn(x)


@device
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


@device
def silu(x: tl.tensor) -> tl.tensor:
    """X sigmoid(x); NaN for -inf, as torch has it."""
    return activate(x, "silu")


@device
def gelu(x: tl.tensor) -> tl.tensor:
    """The erf form of GELU in a dozen instructions; NaN for -inf, as torch has it.

    x Phi(x), with Phi(-|x|) = 2^p(|x|) and Phi(|x|) = 1 - Phi(-|x|). p is the polynomial that is nearest
    to log2 Phi(-a) on 0 <= a <= 6, where 2^p errs by 3.3e-6, relative, at most; beyond that p falls on, and
    the answer is below 1e-8. Rounded to bf16 it is the right answer for every bf16 input, down to
    answers of 1e-7; rounded to fp16 it is wrong less often than torch's own float32 is, whose 1 + erf
    cancels. `benchmarks/fit_gelu.py` finds the coefficients.
    """
    a = tl.abs(x)
    p = tl.fma(a, -1.8348803223489085e-06, 6.159969780128449e-05)
    p = tl.fma(p, a, -0.0009305359562858939)
    p = tl.fma(p, a, 0.008507933467626572)
    p = tl.fma(p, a, -0.053960151970386505)
    p = tl.fma(p, a, -0.4584643244743347)
    p = tl.fma(p, a, -1.1512510776519775)
    p = tl.fma(p, a, -0.9999952912330627)
    tail = tl.exp2(p)
    return x * tl.where(x > 0.0, 1.0 - tail, tail)


@device
def gelu_tanh(x: tl.tensor) -> tl.tensor:
    """The tanh form of GELU; NaN for -inf, as torch has it."""
    return activate(x, "gelu_tanh")
