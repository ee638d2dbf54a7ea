"""Functions of float32 values, as accurate as torch's own: for float32 results.

Triton's `exp`, `log` and `/` are approximations that err in the last places of a float32, so these are
libdevice's and correctly rounded divisions. Triton's interpreter has no libdevice; tests replace the
first five functions there.
"""

import triton.language as tl
from triton.language.extra import libdevice

from gatefuse_kernels.launch.jit import device


@device
def exp(x: tl.tensor) -> tl.tensor:
    """e^x."""
    return libdevice.exp(x)


@device
def log(x: tl.tensor) -> tl.tensor:
    """The natural logarithm."""
    return libdevice.log(x)


@device
def log1p(x: tl.tensor) -> tl.tensor:
    """log(1 + x)."""
    return libdevice.log1p(x)


@device
def tanh(x: tl.tensor) -> tl.tensor:
    """The hyperbolic tangent."""
    return libdevice.tanh(x)


@device
def power(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """x^y, by C's rules for infinities and NaN."""
    return libdevice.pow(x, y)


@device
def erf(x: tl.tensor) -> tl.tensor:
    """The error function."""
    return tl.erf(x)


@device
def divide(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """X / y, correctly rounded."""
    return tl.div_rn(x, y)


@device
def sqrt(x: tl.tensor) -> tl.tensor:
    """The square root, correctly rounded."""
    return tl.sqrt_rn(x)


@device
def rsqrt(x: tl.tensor) -> tl.tensor:
    """1 / sqrt(x)."""
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@device
def minimum(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """The smaller; NaN if either is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@device
def maximum(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """The larger; NaN if either is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@device
def relu(x: tl.tensor) -> tl.tensor:
    """max(x, 0), where NaN stays NaN."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@device
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + exp(-x))


@device
def silu(x: tl.tensor) -> tl.tensor:
    """X sigmoid(x); NaN for -inf, as torch has it."""
    return tl.div_rn(x, 1.0 + exp(-x))


@device
def gelu(x: tl.tensor) -> tl.tensor:
    """X (1 + erf(x / sqrt 2)) / 2; NaN for -inf, as torch has it."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@device
def gelu_tanh(x: tl.tensor) -> tl.tensor:
    """The tanh form of GELU: 0.5 (1 + tanh u) is sigmoid(2u), which loses nothing where tanh is near -1."""
    inner = x * (1.0 + 0.044715 * x * x)
    return tl.div_rn(x, 1.0 + exp(inner * -1.5957691216057308))


@device
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + e^x); x itself above 20, as torch has it."""
    return tl.where(x > 20.0, x, log1p(exp(x)))
