"""What is refused, and where the error points."""

from __future__ import annotations

import math

import pytest

from gatefuse_kernels.expression import ExpressionError, check_all_used, parse_program

OUTSIDE = [
    ("x +", 4, "syntax"),
    ("x // 2", 1, "// is not allowed: use /"),
    ("x << 2", 1, "<< is not allowed"),
    ("x and x", 1, "and is not allowed: use where and comparisons"),
    ("not x", 1, "not is not allowed: use where and comparisons"),
    ("x.real", 1, "attributes such as x.y are not allowed"),
    ("1 + (x if x else 2)", 6, "if/else is not allowed: use where"),
    ("x is x", 1, "is is not allowed: use =="),
    ("x, x", 1, "several values"),
    ("await x", 1, "this is not allowed"),
    ("import os", 1, "import is not allowed"),
    ("del x", 1, "only assignments and expressions"),
    ("a = b = x", 1, "one name at a time"),
    ("a, b = x", 1, "one name at a time"),
    ("a.b = x", 1, "one name at a time"),
    ("a += x", 1, r"\+= and the like are not allowed"),
    ("x[0]", 2, r"'\[' is not allowed"),
    ("x + 'a'", 5, "is not allowed"),
    ("x @ x", 3, "'@' is not allowed"),
    ("x + é", 5, "'é' is not allowed"),
    ("x\0", 2, "is not allowed"),
    ("__import__(x)", 1, "__import__ is not a known function"),
    ("x + open(x)", 5, "open is not a known function"),
    ("gelu(x)(x)", 1, "only a function can be called, by its name"),
    ("x + True", 5, "True is not a number"),
    ("x + None", 5, "not a number"),
    ("x + ...", 5, "not a number"),
    ("x + 2j", 5, "not a number"),
]
"""Where the grammar is left, an error says what is in it."""

INSIDE = [
    ("", 1, "empty"),
    ("x + _a", 5, "does not start with a letter"),
    ("gelu(gelu)", 6, "needs an argument"),
    ("gelu(x, x)", 1, "exactly one argument"),
    ("min(x)", 1, "exactly two arguments"),
    ("clamp(x, 1)", 1, "exactly three arguments"),
    ("gelu(*x)", 1, "exactly one argument"),
    ("gelu(a=x)", 1, "exactly one argument"),
    ("x + 1e999", 5, "not finite"),
    ("x + 1 / 0", 5, "not finite"),
    ("x + log(0)", 5, "not finite"),
    ("x + (-8) ** 0.5", 5, "not finite"),
    ("x + 10 ** 999", 5, "not finite"),
    ("x + " + "9" * 400, 5, "not finite"),
    ("x * 1e39", 5, "beyond float32"),
    ("x + x * min(x, -1e39)", 16, "beyond float32"),
    ("where(1e39 < x, x, 0)", 7, "beyond float32"),
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
    ("where(scale > 1, x, z)", 21, "no output depends on z"),
    ("x + where(0 > 1 > z, 1, 2)", 19, "no output depends on z"),
]


@pytest.mark.parametrize(
    ("text", "column", "match", "is_outside"),
    [*((*each, True) for each in OUTSIDE), *((*each, False) for each in INSIDE)],
)
def test_errors_point_at_the_column(text: str, column: int, match: str, is_outside: bool) -> None:
    with pytest.raises(ExpressionError, match=match) as error:
        parse_program(text, {"scale": 2.0})
    message = str(error.value)
    assert message.startswith(f"column {column}:")
    assert ("allowed are numbers" in message) == is_outside
    assert message.splitlines()[-1] == " " * (column + 1) + "^"


@pytest.mark.parametrize(
    ("text", "place", "shown"),
    [
        ("t = silu(g)\ny = t @ u\n", "line 2, column 7", "y = t @ u"),
        ("t  =  silu(g) ;\n\n  y = open(t)", "line 3, column 7", "  y = open(t)"),
        ("x + (1 +\r\n  z.a)", "line 2, column 3", "  z.a)"),
        ("x # the input\n+ # and no more", "line 2, column 2", "+ # and no more"),
        ("x\\\n + 1", "line 1, column 2", "x\\"),
        ("\tx + é", "column 6", " x + é"),
        (" \n ; ", "line 1, column 1", " "),
    ],
)
def test_errors_point_into_what_was_written(text: str, place: str, shown: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse_program(text, {})
    first, line, caret = str(error.value).split("\n")
    assert first.startswith(f"{place}: ")
    assert line == f"  {shown}"
    assert caret.index("^") - 1 == int(place.rpartition(" ")[2])


def test_an_error_shows_nothing_that_a_terminal_obeys() -> None:
    with pytest.raises(ExpressionError) as error:
        parse_program("x + \x1b[2J\ud800", {})
    str(error.value).encode()
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "scalars", "vectors", "words"),
    [
        ("x", {"gelu": 1.0}, (), "a function has that name"),
        ("x", {"2a": 1.0}, (), "starts with a letter"),
    ],
)
def test_constants_that_mean_nothing(
    text: str, scalars: dict[str, float], vectors: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ExpressionError, match=words) as error:
        parse_program(text, scalars, vectors)
    assert "allowed are" not in str(error.value)


def test_constants_without_a_use() -> None:
    check_all_used("y = gelu(x) * w # W", ["w"])
    words = "constant 'W' is not used by the expression; its names are y, x, w"
    with pytest.raises(ExpressionError, match=words):
        check_all_used("y = gelu(x) * w # W", ["w", "W"])


def test_a_statement_that_nothing_needs() -> None:
    text = "t = exp(u); y = x"
    assert parse_program(text, {}).outputs == ("t", "y")
    with pytest.raises(ExpressionError, match="column 1: t is never used: leave it out or name it"):
        parse_program(text, {}, outputs=["y"])


def test_the_source_around_a_late_error_is_shown() -> None:
    text = "x" + " + 1" * 80 + " + x.real"
    with pytest.raises(ExpressionError, match="attributes") as error:
        parse_program(text, {})
    message, shown, caret = str(error.value).splitlines()
    column = int(message.removeprefix("column ").partition(":")[0])
    assert text[column - 1 :] == "x.real"
    assert len(shown) < 130
    assert shown[caret.index("^") :].startswith("x.real")


@pytest.mark.parametrize(
    "text", ["(" * 250 + "x" + ")" * 250, "-" * 900 + "x", "x" + " + 1" * 300, "1if x", "0_x1(("]
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"^column \d+: "):
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
