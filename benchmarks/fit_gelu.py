"""Finds the polynomial of `gatefuse_kernels.elementwise.short.gelu`, and shows what it rounds to.

    python benchmarks/fit_gelu.py

The polynomial p is fitted to log2 Phi(-a) on 0 <= a <= 6, at Chebyshev's points, by least squares whose weights
are raised where the error is large, until it is nearly the same everywhere. Its leading coefficient must
be negative and p must fall beyond 6, so that 2^p goes to zero there. The kernel's float32 arithmetic is
then done step by step for all values of bf16 and fp16, and what it rounds to compared with float64.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

END = 6.0
DEGREE = 7

Array = NDArray[np.float64]


def main() -> None:
    """Print the coefficients, the error, and wrong roundings by type."""
    coefficients, error = fit(END, DEGREE)
    print(f"relative error of 2^p on 0..{END}: {error:.2e}")
    for power, each in enumerate(coefficients):
        print(f"a^{power}: {float(np.float32(each))!r}")
    beyond = np.polynomial.polynomial.polyval(np.linspace(END, 50, 1000), coefficients)
    assert coefficients[-1] < 0
    assert (np.diff(beyond) < 0).all(), "p rises again"
    for dtype in (torch.bfloat16, torch.float16):
        ours, torchs, of = wrong_roundings(coefficients, dtype)
        print(
            f"{dtype}: {ours} of {of} answers above 1e-7 rounded wrong, torch's float32 form {torchs}"
        )


def fit(end: float, degree: int) -> tuple[Array, float]:
    """Coefficients from a^0 on, and the largest relative error of 2^p."""
    count = 600
    a = end * (1 - np.cos(np.pi * (np.arange(count) + 0.5) / count)) / 2
    y = torch.special.log_ndtr(torch.from_numpy(-a)).numpy() / np.log(2)
    basis = np.polynomial.chebyshev.chebvander(2 * a / end - 1, degree)
    weights = np.ones(count)
    for _ in range(60):
        found, *_ = np.linalg.lstsq(basis * weights[:, None], y * weights, rcond=None)
        error = np.abs(basis @ found - y)
        weights *= (error / error.max() + 1e-3) ** 0.3
        weights /= weights.max()
    series = np.polynomial.chebyshev.Chebyshev(found, domain=[0, end])
    coefficients = series.convert(kind=np.polynomial.Polynomial).coef.astype(np.float64)
    return coefficients, float(error.max() * np.log(2))


def wrong_roundings(coefficients: Array, dtype: torch.dtype) -> tuple[int, int, int]:
    """Answers that are rounded the wrong way: ours, those of torch's float32 form, of how many."""
    values = torch.arange(65_536).to(torch.int16).view(dtype)
    values = values[values.isfinite()]
    exact = values.double() * torch.special.erfc(-values.double() * 0.5**0.5) / 2
    clear = exact.abs() > 1e-7
    right = exact.to(dtype)
    ours = short_gelu(values.float(), coefficients).to(dtype)
    torchs = torch.nn.functional.gelu(values.float()).to(dtype)
    return int((ours != right)[clear].sum()), int((torchs != right)[clear].sum()), int(clear.sum())


def short_gelu(x: torch.Tensor, coefficients: Array) -> torch.Tensor:
    """As the kernel computes it, each multiply-add rounded once."""
    a = x.abs().double()
    rounded = [float(np.float32(each)) for each in coefficients]
    p = torch.full_like(a, rounded[-1])
    for each in reversed(rounded[:-1]):
        p = (p * a + each).float().double()
    tail = torch.exp2(p).float()
    return x * torch.where(x > 0, 1 - tail, tail)


if __name__ == "__main__":
    main()
