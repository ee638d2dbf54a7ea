"""Expressions in float64: every operation as torch computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from gatefuse.commands.loadtest.evaluate import evaluate, rounded
from gatefuse.wire import Datatype
from gatefuse_kernels.expression import FUNCTIONS, parse_program

X = np.array([[-3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 2.5, 19.0, np.inf, -np.inf, np.nan]])
A = np.array([[2.0, -1.0, 3.0, 0.0, 0.25, -2.0, 0.5, -4.0, 1.0, 2.0, 3.0]])
TORCH: dict[str, Callable[..., Any]] = {
    "x + a": lambda x, a: x + a,
    "x - a": lambda x, a: x - a,
    "x * a": lambda x, a: x * a,
    "x / a": lambda x, a: x / a,
    "x ** a": lambda x, a: x**a,
    "-x + a": lambda x, a: -x + a,
    "min(x, a)": torch.minimum,
    "max(x, a)": torch.maximum,
    "clamp(x, -1, 2) + a * 0": lambda x, a: torch.clamp(x, -1, 2) + a * 0,
    "where(x < a, x, a)": lambda x, a: torch.where(x < a, x, a),
    "where(x <= a, 1, a)": lambda x, a: torch.where(x <= a, 1, a),
    "where(x > a, x, 2)": lambda x, a: torch.where(x > a, x, 2),
    "where(x >= a, x, a)": lambda x, a: torch.where(x >= a, x, a),
    "where(x == a, 5, a)": lambda x, a: torch.where(x == a, 5, a),
    "where(x != a, 5, a)": lambda x, a: torch.where(x != a, 5, a),
    "where(0 < x < a, x, a)": lambda x, a: torch.where((x > 0) & (x < a), x, a),
}
FUNCTION_OF_X: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softplus": functional.softplus,
    "fp32": lambda x: x.float().double(),
    "bf16": lambda x: x.bfloat16().double(),
    "fp16": lambda x: x.half().double(),
}
OF_SEVERAL = {"min", "max", "clamp", "where"}


def _check(text: str, expected: torch.Tensor) -> None:
    program = parse_program(text, {})
    inputs = {name: {"x": X, "a": A}[name] for name in program.inputs}
    (found,) = evaluate(program, inputs)
    # torch gives silu and gelu of -inf as NaN or 0 as its kernels do: what no float64 formula decides.
    usual = ~np.isneginf(X) if "lu(" in text or "lu_" in text else np.full_like(X, True, dtype=bool)
    np.testing.assert_allclose(
        found[usual], expected.numpy()[usual], rtol=1e-9, atol=1e-12, equal_nan=True
    )


@pytest.mark.parametrize("text", TORCH)
def test_operators(text: str) -> None:
    _check(text, TORCH[text](torch.from_numpy(X), torch.from_numpy(A)))


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - OF_SEVERAL))
def test_functions(name: str) -> None:
    _check(f"{name}(x)", FUNCTION_OF_X[name](torch.from_numpy(X)))


def test_several_outputs_and_constants() -> None:
    program = parse_program(
        "t = x * scale; y = t + a; z = 3", {"scale": 2.0}, outputs=["y", "t", "z"]
    )
    y, t, z = evaluate(program, {"x": X, "a": A})
    np.testing.assert_array_equal(t, X * 2)
    np.testing.assert_array_equal(y, X * 2 + A)
    np.testing.assert_array_equal(z, np.full_like(X, 3))


def test_values_are_rounded_by_each_datatype() -> None:
    values = np.array([[0.01, 1.0, 70000.0]], np.float32)
    np.testing.assert_array_equal(rounded(values, Datatype.FP32), values)
    np.testing.assert_array_equal(
        rounded(values, Datatype.BF16), torch.tensor(values).bfloat16().double()
    )
    np.testing.assert_array_equal(
        rounded(values, Datatype.FP16, Datatype.BF16),
        torch.tensor(values).half().bfloat16().double(),
    )
