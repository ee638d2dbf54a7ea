"""What is timed; no GPU is needed to say how large it is."""

from __future__ import annotations

import pytest
import torch

from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.explain.measuring import shape_of
from gatefuse_kernels.explain.results import Point
from gatefuse_kernels.expression import parse_program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType


@pytest.mark.parametrize("elements", [1, 100_000_000, 100_000_007])
def test_a_column_of_any_number_of_elements_can_be_timed(elements: int) -> None:
    """`gatefuse explain --elements` says one column, and more rows than a call may have."""
    program = parse_program("x * 2 + 3", {})
    rows, columns = shape_of(program, Point(elements, 1, (), ()))
    assert rows * columns == elements
    build_elementwise(
        "eager",
        program,
        vectors={},
        ledger=Ledger(),
        dtype=DType.BF16,
        device=torch.device("cpu"),
        max_rows=rows,
    )


def test_vectors_keep_their_columns() -> None:
    program = parse_program("x * s", {}, ("s",))
    assert shape_of(program, Point(77, 1000, (), ())) == (77, 1000)
