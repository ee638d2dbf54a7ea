"""Values at the edges of what float32 can be, and how results there are compared."""

from __future__ import annotations

import math

import torch

from gatefuse_kernels.expression import OPERATIONS

SPECIAL_VALUES = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 20.0, 20.5, -20.0),
    *(1e-20, -1e-20, 1e-6, -1e-6, 88.0, -88.0, 89.0, -89.0, 104.0, -104.0, 1e4, -1e4, 6e4, -6e4),
    *(1e30, -1e30, 3.4e38, -3.4e38, 5.9, -5.9, 13.0, -13.0),
)


def unary_programs() -> list[str]:
    """A text for each function of one operand, signs and powers included."""
    names = [
        name for name, each in OPERATIONS.items() if each.is_function and len(each.operands) == 1
    ]
    powers = [
        f"x ** {exponent}"
        for exponent in ("0", "1", "2", "3", "0.5", "-0.5", "-1", "-2", "1.5", "4")
    ]
    others = ["-x", "1 / x", "x / 3", "2 ** x", "x - 1", "where(x > 0, x, 2)", "clamp(x, -1, 1)"]
    limits = ["min(x, 0.25)", "max(x, 0.25)"]
    return [f"{name}(x)" for name in names] + powers + others + limits


def assert_same_kinds(
    found: torch.Tensor, expected: torch.Tensor, what: str, *operands: torch.Tensor
) -> None:
    """NaN where NaN is expected, the same infinities, and numbers that are near."""
    unit = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[found.dtype]
    # Denormal results may be flushed; in the tail of gelu 1 + erf cancels, in torch's own form.
    smallest = 2e-6 if "gelu" in what else 2e-38
    near = torch.isclose(found, expected, rtol=unit, atol=smallest, equal_nan=True)
    # The largest finite value and infinity are neighbours.
    edge = torch.finfo(found.dtype).max * (1 - unit)
    near |= (found.abs() >= edge) & (expected.abs() >= edge) & (found.sign() == expected.sign())
    wrong = [
        (*(each[~near][place].item() for each in operands), found[~near][place].item(), want.item())
        for place, want in enumerate(expected[~near])
    ]
    assert not wrong, f"{what}: operands, found, expected: {wrong[:10]}"
