"""Random programs and matrices for property tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from gatefuse_kernels.expression import OPERATIONS, ExpressionError, Program, parse_program

LEAVES = ("x", "z", "v", "scale", "2", "0.5", "-3.25", "1e-3", "0")
UNARY = tuple(
    name for name, each in OPERATIONS.items() if each.is_function and len(each.operands) == 1
)
SHAPES = ((1, 1), (1, 7), (3, 5), (5, 37), (2, 128), (7, 130), (1, 2049), (3, 688))
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-30,
    -80.0,
    90.0,
    3e38,
)


def expressions(casts: bool = True) -> st.SearchStrategy[str]:
    """Texts of one expression; `casts` to 16 bits are left out where nothing can compute them."""
    functions = [each for each in UNARY if casts or each not in ("bf16", "fp16")]

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        two = st.tuples(inner, inner)
        return st.one_of(
            st.builds("{0}({1})".format, st.sampled_from(functions), inner),
            st.builds("({0[0]} {1} {0[1]})".format, two, st.sampled_from("+-*/")),
            st.builds("{1}({0[0]}, {0[1]})".format, two, st.sampled_from(("min", "max"))),
            st.builds("clamp({0}, {1[0]}, {1[1]})".format, inner, two),
            st.builds(
                "where({0[0]} {1} {0[1]}, {2[0]}, {2[1]})".format,
                two,
                st.sampled_from(("<", "<=", ">", ">=", "==", "!=")),
                two,
            ),
            st.builds(
                "({0}) ** {1}".format, inner, st.sampled_from(("2", "3", "0.5", "-1", "1.5"))
            ),
            st.builds("(-{0})".format, inner),
        )

    return st.recursive(st.sampled_from(LEAVES), larger, max_leaves=8)


@st.composite
def programs(draw: st.DrawFn, casts: bool = True) -> Program:
    """Programs of one to three lines, at least one of them with an input."""
    lines = draw(st.lists(expressions(casts), min_size=1, max_size=3))
    text = "; ".join(f"out{number} = {line}" for number, line in enumerate(lines))
    try:
        return parse_program(text, {"scale": 1.7}, ["v"])
    except ExpressionError:
        # A constant that is not finite, or no input.
        return parse_program(
            f"x + 0; {text}".replace("x + 0; ", "y = x * 2 + v; ").split("; ")[0], {}, ["v"]
        )


def matrices(
    program: Program, shape: Sequence[int], dtype: torch.dtype, seed: int
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs and vectors: normal numbers with a few special ones among them."""
    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor(SPECIAL)

    def noise(*size: int) -> torch.Tensor:
        values = torch.randn(*size, generator=generator) * 3
        chosen = torch.randint(len(SPECIAL), size, generator=generator)
        rare = torch.rand(*size, generator=generator) < 0.1
        return torch.where(rare, special[chosen], values).to(dtype)

    inputs = [noise(*shape) for _ in program.inputs]
    return inputs, {name: noise(shape[1]) for name in program.vectors}
