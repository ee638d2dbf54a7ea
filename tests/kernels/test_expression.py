"""The expression grammar, and the unfused elementwise form."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.expression import ExpressionError, parse_expression
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

Function = Callable[[torch.Tensor], torch.Tensor]

RIGHT: dict[str, tuple[Function, list[str]]] = {
    "x": (lambda x: x, ["copy"]),
    " ( x ) ": (lambda x: x, ["copy"]),
    "x * 2 + 3": (lambda x: x * 2 + 3, ["mul", "add"]),
    "gelu(x) * scale + 1": (lambda x: functional.gelu(x) * 0.5 + 1, ["gelu", "mul", "add"]),
    "gelu_tanh(x)": (lambda x: functional.gelu(x, approximate="tanh"), ["gelu_tanh"]),
    "2 / (1 + exp(-x))": (lambda x: 2 / (1 + torch.exp(-x)), ["neg", "exp", "add", "div"]),
    "1 - x": (lambda x: 1 - x, ["sub"]),
    "x - x * x": (lambda x: x - x * x, ["mul", "sub"]),
    "x / (2 * scale)": (lambda x: x / 1.0, ["div"]),
    "silu(relu(x)) + abs(tanh(x)) * sigmoid(x)": (
        lambda x: functional.silu(torch.relu(x)) + torch.tanh(x).abs() * torch.sigmoid(x),
        ["relu", "silu", "tanh", "abs", "sigmoid", "mul", "add"],
    ),
}


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("text", RIGHT)
def test_values_and_launches(text: str, dtype: DType) -> None:
    function, ops = RIGHT[text]
    expression = parse_expression(text, {"scale": 0.5})
    assert expression.inputs == ("x",)
    ledger = Ledger()
    run = build_elementwise(expression, ledger=ledger, dtype=dtype, max_rows=8)
    run.warm_up()
    x = torch.linspace(-6, 6, 5 * 7).reshape(5, 7).to(dtypes.to_torch(dtype))
    out = torch.full_like(x, math.nan)
    run(x, out)
    torch.testing.assert_close(out, function(x))
    entries = ledger.drain()
    assert [entry.kernel for entry in entries] == [f"eager_{op}" for op in ops]
    assert all(entry.written_bytes == x.nbytes for entry in entries)
    assert run.padded_rows(5) == 5
    assert run.backend == "eager"


def test_bytes_count_each_tensor_read() -> None:
    ledger = Ledger()
    expression = parse_expression("x * x + 1", {})
    run = build_elementwise(expression, ledger=ledger, dtype=DType.FP32, max_rows=4)
    x = torch.ones(2, 3)
    run(x, torch.empty_like(x))
    assert [entry.read_bytes for entry in ledger.drain()] == [2 * x.nbytes, x.nbytes]


def test_empty_batches_launch_nothing() -> None:
    ledger = Ledger()
    run = build_elementwise(
        parse_expression("x + 1", {}), ledger=ledger, dtype=DType.BF16, max_rows=4
    )
    for shape in ((0, 5), (3, 0)):
        x = torch.empty(shape, dtype=torch.bfloat16)
        run(x, torch.empty_like(x))
    assert ledger.drain() == []


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (torch.empty(2, 3), "float32"),
        (torch.empty(5, 3, dtype=torch.bfloat16), "rows"),
        (torch.empty(2, dtype=torch.bfloat16), "M, "),
        (torch.empty(3, 2, dtype=torch.bfloat16).t(), "contiguous"),
    ],
)
def test_wrong_tensors_are_refused(x: torch.Tensor, match: str) -> None:
    run = build_elementwise(
        parse_expression("x + 1", {}), ledger=Ledger(), dtype=DType.BF16, max_rows=4
    )
    with pytest.raises(ValueError, match=match):
        run(x, x)


@pytest.mark.parametrize(
    ("text", "column", "match"),
    [
        ("x +", 4, "syntax"),
        ("", 1, "syntax"),
        ("x ** 2", 1, "Pow is not allowed"),
        ("x // 2", 1, "FloorDiv is not allowed"),
        ("~x", 1, "Invert is not allowed"),
        ("x and x", 1, "And is not allowed"),
        ("x.real", 1, "Attribute is not allowed"),
        ("1 + x[0]", 5, "Subscript is not allowed"),
        ("lambda: x", 1, "Lambda is not allowed"),
        ("x < 1", 1, "Compare is not allowed"),
        ("(x := 1)", 2, "NamedExpr is not allowed"),
        ("__import__('os').system('true')", 1, "not a known function"),
        ("open(x)", 1, "not a known function"),
        ("gelu(gelu)", 6, "needs an argument"),
        ("gelu(x, x)", 1, "exactly one argument"),
        ("gelu(*x)", 1, "exactly one argument"),
        ("gelu(a=x)", 1, "exactly one argument"),
        ("gelu(2) + x", 1, "of a constant"),
        ("x + 'a'", 5, "not a number"),
        ("x + True", 5, "not a number"),
        ("x + 2j", 5, "not a number"),
        ("x + 1e999", 5, "not finite"),
        ("x + 1 / 0", 5, "not finite"),
        ("x + " + "9" * 400, 5, "not finite"),
        ("scale * 2", 1, "no tensor input"),
        ("x + residual", 5, "several tensor inputs"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, match: str) -> None:
    with pytest.raises(ExpressionError, match=match) as error:
        parse_expression(text, {"scale": 2.0})
    assert str(error.value).startswith(f"column {column}:")
    assert str(error.value).splitlines()[-1] == " " * (column + 1) + "^"


@pytest.mark.parametrize(
    "text", ["(" * 250 + "x" + ")" * 250, "-" * 900 + "x", "x" + " + 1" * 200, "x\0"]
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="allowed"):
        parse_expression(text, {})


def test_nesting_below_the_limit_is_fine() -> None:
    assert len(parse_expression("x" + " + x" * 90, {}).steps) == 90


def test_long_text_is_refused() -> None:
    with pytest.raises(ExpressionError, match="1000"):
        parse_expression("x" + "+1" * 500, {})


@pytest.mark.parametrize("constants", [{"gelu": 1.0}, {"a b": 1.0}, {"a": math.inf}, {"a": "1"}])
def test_constants_are_checked(constants: dict[str, float]) -> None:
    with pytest.raises(ExpressionError, match="constant"):
        parse_expression("x", constants)
