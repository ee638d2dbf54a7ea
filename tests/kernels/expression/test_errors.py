"""What is refused, and where the error points."""

from __future__ import annotations

import math

import pytest

from gatefuse_kernels.expression import ExpressionError, parse_program


@pytest.mark.parametrize(
    ("text", "column", "match"),
    [
        ("x +", 4, "syntax"),
        ("", 1, "empty"),
        (" \n ; ", 1, "empty"),
        ("x // 2", 1, "FloorDiv is not allowed"),
        ("x and x", 1, "And is not allowed"),
        ("not x", 1, "Not is not allowed"),
        ("x.real", 1, "Attribute is not allowed"),
        ("1 + (x if x else 2)", 6, "IfExp is not allowed"),
        ("x is x", 1, "Is is not allowed"),
        ("x, x", 1, "Tuple is not allowed"),
        ("import os", 1, "Import is not allowed"),
        ("a = b = x", 1, "one name at a time"),
        ("a, b = x", 1, "one name at a time"),
        ("a.b = x", 1, "one name at a time"),
        ("a += x", 1, "AugAssign is not allowed"),
        ("x[0]", 2, r"'\[' is not allowed"),
        ("x + 'a'", 5, "is not allowed"),
        ("x # comment", 3, "'#' is not allowed"),
        ("x @ x", 3, "'@' is not allowed"),
        ("x \\\n + 1", 3, "is not allowed"),
        ("x + é", 5, "is not allowed"),
        ("x\0", 2, "is not allowed"),
        ("x + _a", 5, "does not start with a letter"),
        ("__import__(x)", 1, "not a known function"),
        ("open(x)", 1, "not a known function"),
        ("gelu(x)(x)", 1, "not a known function"),
        ("gelu(gelu)", 6, "needs an argument"),
        ("gelu(x, x)", 1, "exactly one argument"),
        ("min(x)", 1, "exactly two arguments"),
        ("clamp(x, 1)", 1, "exactly three arguments"),
        ("gelu(*x)", 1, "exactly one argument"),
        ("gelu(a=x)", 1, "exactly one argument"),
        ("x + True", 5, "not a number"),
        ("x + None", 5, "not a number"),
        ("x + ...", 5, "not a number"),
        ("x + 2j", 5, "not a number"),
        ("x + 1e999", 5, "not finite"),
        ("x + 1 / 0", 5, "not finite"),
        ("x + log(0)", 5, "not finite"),
        ("x + (-8) ** 0.5", 5, "not finite"),
        ("x + 10 ** 999", 5, "not finite"),
        ("x + " + "9" * 400, 5, "not finite"),
        ("x * 1e39", 1, "beyond float32"),
        ("y = 1e39; z = x", 5, "beyond float32"),
        ("x > 1", 1, "the output y is a truth value"),
        ("a = x > 1; x", 5, "the output a is a truth value"),
        ("(x > 1) * 2", 2, "a truth value stands where a number is needed"),
        ("where(x, 1, 2)", 7, "a number stands where a truth value is needed"),
        ("where(x > 1, x > 2, 0)", 14, "a truth value stands"),
        ("x; x", 4, "only the last statement"),
        ("y = x; x", 8, "y is assigned already"),
        ("a = x; a = x", 8, "has a meaning already"),
        ("a = x; x = a", 8, "has a meaning already"),
        ("x = x + 1", 1, "is an input already"),
        ("scale = x", 1, "cannot be assigned"),
        ("gelu = x", 1, "cannot be assigned"),
        ("scale * 2", 1, "no tensor input"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, match: str) -> None:
    with pytest.raises(ExpressionError, match=match) as error:
        parse_program(text, {"scale": 2.0})
    message = str(error.value)
    assert message.startswith(f"column {column}:")
    assert "allowed are numbers" in message
    assert message.splitlines()[-1] == " " * (column + 1) + "^"


def test_the_source_around_a_late_error_is_shown() -> None:
    text = "x" + " + 1" * 80 + " + x.real"
    with pytest.raises(ExpressionError, match="Attribute") as error:
        parse_program(text, {})
    message, shown, caret = str(error.value).splitlines()
    column = int(message.removeprefix("column ").partition(":")[0])
    assert text[column - 1 :] == "x.real"
    assert len(shown) < 130
    assert shown[caret.index("^") :].startswith("x.real")


@pytest.mark.parametrize(
    "text", ["(" * 250 + "x" + ")" * 250, "-" * 900 + "x", "x" + " + 1" * 200, "1if x", "0_x1(("]
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="allowed"):
        parse_program(text, {})


@pytest.mark.parametrize(
    ("outputs", "match"), [(("z",), "never assigned"), ((), "at least one"), (("y", "y"), "once")]
)
def test_outputs_are_checked(outputs: tuple[str, ...], match: str) -> None:
    with pytest.raises(ExpressionError, match=match):
        parse_program("y = x + 1", {}, outputs=outputs)


@pytest.mark.parametrize(
    "scalars",
    [
        {"gelu": 1.0},
        {"a b": 1.0},
        {"_a": 1.0},
        {"é": 1.0},
        {"a": math.inf},
        {"a": 1e39},
        {"a": "1"},
        {"a": True},
        {"v": 1.0},
    ],
)
def test_constants_are_checked(scalars: dict[str, float]) -> None:
    with pytest.raises(ExpressionError, match="constant"):
        parse_program("x", scalars, ["v"])
