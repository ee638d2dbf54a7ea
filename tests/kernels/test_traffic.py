"""The byte and FLOP formulas against what the reports say of them."""

from __future__ import annotations

import pytest

from gatefuse_kernels import traffic
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.shapes import MlpShape

LLAMA_8B = MlpShape(4096, 14336)


@pytest.mark.parametrize(
    ("columns", "factor", "gigabytes"),
    [(32, 85.7, 30.2), (64, 43.0, 15.2), (128, 21.7, 7.6), (256, 11.0, 3.9)],
)
def test_what_the_textbook_kernel_costs(columns: int, factor: float, gigabytes: float) -> None:
    """R column tiles compute gate and up R times: (2R + 1) / 3 of the FLOPs, 15.2 GB of weights a row block at 64."""
    tile = Tile(16, columns, 64, 4, 3, False)
    textbook = traffic.textbook_mlp(LLAMA_8B, 1, 2, tile)
    needed = sum(launch.flops for launch in traffic.fused_mlp(LLAMA_8B, 1, 2))
    assert textbook.flops / needed == pytest.approx(factor, rel=0.01)
    assert textbook.read_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert textbook.written_bytes == 4096 * 2


def test_the_textbook_kernel_reads_weights_for_each_row_tile() -> None:
    tile = Tile(16, 64, 64, 4, 3, False)
    one, three = (traffic.textbook_mlp(LLAMA_8B, rows, 2, tile) for rows in (16, 33))
    rows_bytes = 64 * 4096 * 2
    assert three.read_bytes - 33 * rows_bytes == 3 * (one.read_bytes - 16 * rows_bytes)


def test_the_textbook_kernel_with_one_column_tile_is_the_ideal() -> None:
    """R = 1: five passes, no byte and no FLOP too many."""
    shape = MlpShape(64, 96)
    textbook = traffic.textbook_mlp(shape, 16, 2, Tile(16, 64, 64, 4, 3, False))
    fused = traffic.fused_mlp(shape, 16, 2)
    assert textbook.flops == sum(launch.flops for launch in fused)
    assert textbook.read_bytes == (16 * 64 + shape.weight_elements) * 2


def test_the_gate_alone() -> None:
    """One launch: two operands in, one out."""
    launch = traffic.swiglu_gate(3, 100, 2)
    assert (launch.kernel, launch.read_bytes, launch.written_bytes) == ("swiglu_gate", 1200, 600)
    assert launch.flops == 5 * 300
