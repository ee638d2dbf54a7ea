"""What an expression means: steps, names, outputs."""

from __future__ import annotations

import pytest

from gatefuse_kernels.expression import (
    MAX_DEPTH,
    MAX_STEPS,
    OPERATIONS,
    ExpressionError,
    Operand,
    Program,
    Step,
    names_in,
    parse_program,
)


def steps(text: str, **scalars: float) -> list[tuple[str, tuple[Operand, ...]]]:
    return [(step.op, step.operands) for step in parse_program(text, scalars).steps]


def test_the_seeds_chain() -> None:
    assert parse_program("gelu(x) * scale + residual", {"scale": 1.7}) == Program(
        text="gelu(x) * scale + residual",
        inputs=("x", "residual"),
        vectors=(),
        outputs=("y",),
        steps=(Step("gelu", ("x",)), Step("mul", (0, 1.7)), Step("add", (1, "residual"))),
        results=(2,),
    )


def test_per_column_constants_are_vectors() -> None:
    program = parse_program("x * scale + shift * bias", {"bias": 2.0}, ["shift", "scale"])
    assert program.vectors == ("scale", "shift")
    assert program.inputs == ("x",)
    assert program.full_steps() == (True, False, True)


def test_assignments_and_the_output_nobody_reads() -> None:
    program = parse_program("t = silu(g); y = t * u", {})
    assert program.outputs == ("y",)
    assert program.inputs == ("g", "u")
    assert program.results == (1,)


@pytest.mark.parametrize(
    "text",
    [
        "a = x + 1\nb = a * 2\nc = a - 2",
        "a=x+1;b=a*2;c=a-2",
        "\n\na = (x +\n1)\r\nb = a*2;;\nc = a-2\n",
    ],
)
def test_lines_and_semicolons(text: str) -> None:
    program = parse_program(text, {})
    assert program.outputs == ("b", "c")
    assert [step.op for step in program.steps] == ["add", "mul", "sub"]


def test_outputs_may_be_chosen() -> None:
    program = parse_program("a = x + 1; c = a - 2", {}, outputs=("c", "a"))
    assert program.outputs == ("c", "a")
    assert program.steps == (Step("add", ("x", 1.0)), Step("sub", (0, 2.0)))
    assert program.results == (1, 0)


def test_the_last_line_may_have_no_name() -> None:
    program = parse_program("t = x + 1; t * y", {})
    assert program.outputs == ("y",)
    assert program.inputs == ("x", "y")


def test_equal_computations_are_one_step() -> None:
    assert steps("(x + 1) * (1 + x)") == [("add", ("x", 1.0)), ("mul", (0, 0))]
    assert steps("(x - 1) * (1 - x)") == [
        ("sub", ("x", 1.0)),
        ("sub", (1.0, "x")),
        ("mul", (0, 1)),
    ]


def test_zeros_of_both_signs_are_two_constants() -> None:
    assert len(steps("(x + 0.0) * (x + -0.0)")) == 3


def test_arithmetic_between_constants_is_done_once() -> None:
    assert steps("x * (2 ** 3 - 1) / scale", scale=2.0) == [("mul", ("x", 7.0)), ("div", (0, 2.0))]


def test_a_chain_of_comparisons_is_their_conjunction() -> None:
    assert steps("where(0 < x * 2 <= 1, x, 0)") == [
        ("mul", ("x", 2.0)),
        ("lt", (0.0, 0)),
        ("le", (0, 1.0)),
        ("and", (1, 2)),
        ("where", (3, "x", 0.0)),
    ]


def test_a_known_condition_selects_once() -> None:
    assert steps("where(scale > 1, x, -x)", scale=2.0) == []
    assert steps("where(1 < 2 < x, x, 0)")[0] == ("lt", (2.0, "x"))
    assert steps("where(2 < 1 < x, x, exp(x))") == [("exp", ("x",))]


def test_powers_of_0_and_1_keep_their_tensor() -> None:
    assert steps("x ** 0") == [("pow", ("x", 0.0))]
    assert steps("x ** 1") == [("pow", ("x", 1.0))]
    assert parse_program("x + u ** 0", {}).inputs == ("x", "u")


def test_comments_are_left_out() -> None:
    text = "# a gate\nt = silu(g)  # of g; not u\ny = (t *  # ( times\n u)\n# z"
    assert parse_program(text, {}).text == "t = silu(g); y = (t * u)"


def test_names_in_a_text() -> None:
    assert names_in("y = gelu(x1) * 1e3 + 2.e5 # z\n- W") == ("y", "x1", "W")


def test_signs() -> None:
    assert steps("-x ** 2") == [("pow", ("x", 2.0)), ("neg", (0,))]
    assert steps("+x - -3") == [("sub", ("x", -3.0))]


def test_results_that_are_no_steps() -> None:
    program = parse_program("a = x; b = 2; c = v", {}, ["v"])
    assert program.results == ("x", 2.0, "v")
    assert program.vectors == ("v",)


def test_every_function_is_callable() -> None:
    for name, operation in OPERATIONS.items():
        if operation.is_function:
            arguments = ", ".join(["x > 0", "x", "z"] if name == "where" else ["x", "z", "w"])
            count = len(operation.operands)
            text = f"{name}({', '.join(arguments.split(', ')[:count])})"
            assert parse_program(text, {}).steps[-1].op == name


def test_limits() -> None:
    for text in ("x" + " + x" * 129, "((x" + " - x" * 60 + ") * x" + " / x" * 67 + ")"):
        assert len(steps(text)) == 129 if "+" in text else 128
    nested = "x + (" * (MAX_DEPTH - 1) + "x" + ")" * (MAX_DEPTH - 1)
    assert len(steps(nested)) == MAX_DEPTH - 1
    with pytest.raises(ExpressionError, match="deep"):
        parse_program(f"x + ({nested})", {})
    with pytest.raises(ExpressionError, match="deep"):
        parse_program("x" + " ** x" * MAX_DEPTH, {})
    lines = "\n".join(f"a{n + 1} = a{n} + 1" for n in range(MAX_STEPS))
    assert len(parse_program("a0 = x\n" + lines, {}).steps) == MAX_STEPS
    with pytest.raises(ExpressionError, match="more than 256 operations"):
        parse_program(f"a0 = x\n{lines}\na{MAX_STEPS} * 3", {})
    with pytest.raises(ExpressionError, match="at most 4000"):
        parse_program("x" + " " * 4000, {})
    with pytest.raises(ExpressionError, match="more than 16"):
        parse_program(" + ".join(f"x{n}" for n in range(16)), {})
