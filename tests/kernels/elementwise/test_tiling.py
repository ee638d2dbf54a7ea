"""A program's share of the matrices: registers bound it, columns shape it."""

from __future__ import annotations

import pytest

from gatefuse_kernels.elementwise.tiling import THREADS, choose_tiling, peak_live_values
from gatefuse_kernels.expression import Program, parse_program


def program_of(text: str) -> Program:
    return parse_program(text, {}, ["v"])


@pytest.mark.parametrize(
    ("text", "live"),
    [
        ("x", 1),
        ("x * 2 + 3", 2),
        ("silu(g) * u", 3),
        ("a = x + 1; b = x + 2; c = x + 3", 4),
        (" + ".join(f"x{number}" for number in range(15)), 16),
    ],
)
def test_live_values(text: str, live: int) -> None:
    assert peak_live_values(program_of(text)) == live


@pytest.mark.parametrize(
    ("text", "per_thread"),
    [("x * 2 + 3", 16), ("silu(g) * u", 16)]
    + [
        (" + ".join(f"x{number}" for number in range(count)), each)
        for count, each in ((10, 8), (15, 4))
    ],
)
def test_elements_of_a_thread(text: str, per_thread: int) -> None:
    assert choose_tiling(program_of(text), 2, None).elements == per_thread * THREADS
    assert choose_tiling(program_of(text), 4, None).elements == min(per_thread, 8) * THREADS


@pytest.mark.parametrize(
    ("columns", "itemsize", "tile"),
    [
        (4096, 2, (2, 1024)),
        (4096, 4, (2, 512)),
        (688, 2, (2, 1024)),
        (100, 4, (8, 128)),
        (1, 4, (1024, 1)),
    ],
)
def test_tiles_with_vectors(columns: int, itemsize: int, tile: tuple[int, int]) -> None:
    found = choose_tiling(program_of("x * v"), itemsize, columns)
    assert (found.rows, found.columns) == tile
