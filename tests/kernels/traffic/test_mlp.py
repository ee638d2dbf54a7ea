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


@pytest.mark.parametrize("rows", [1, 7, 256])
def test_the_seeds_passes(rows: int) -> None:
    """Five kernels that read and write 14 tensors; the promise of one that reads four and writes one."""
    eager = traffic.eager_mlp(LLAMA_8B, rows, 2)
    assert [launch.passes for launch in eager] == [3, 3, 2, 3, 3]
    assert (len(eager), traffic.passes(eager)) == (5, 14)
    ideal = traffic.ideal_mlp(LLAMA_8B, rows, 2)
    assert ideal.passes == 5
    assert {read.tensor for read in ideal.reads} == {"x", "gate", "up", "down"}
    assert [write.tensor for write in ideal.writes] == ["out"]
    assert traffic.passes(traffic.fused_mlp(LLAMA_8B, rows, 2)) == 7


def test_the_promised_kernel_is_the_textbooks_with_one_tile() -> None:
    """One column tile of all of H and one row tile: then, and only then, five passes are five."""
    shape = MlpShape(64, 96)
    whole = traffic.textbook_mlp(shape, 16, 2, Tile(16, 64, 64, 4, 3, False))
    ideal = traffic.ideal_mlp(shape, 16, 2)
    assert (whole.reads, whole.writes, whole.flops) == (ideal.reads, ideal.writes, ideal.flops)


def test_the_textbooks_true_passes() -> None:
    """R = 64 column tiles and T = 3 row tiles: x R times, gate and up R * T times, down T times, out once."""
    launch = traffic.textbook_mlp(LLAMA_8B, 33, 2, Tile(16, 64, 64, 4, 3, False))
    trips = {each.tensor: each.trips for each in (*launch.reads, *launch.writes)}
    assert trips == {"x": 64, "gate": 192, "up": 192, "down": 3, "out": 1}
    assert launch.passes == 452


def test_intermediate_memory() -> None:
    """Eager holds g and u at once, works in place after that; ours holds h; one launch holds nothing."""
    element_rows = 3 * 14336 * 2
    peak = traffic.peak_intermediate_bytes
    assert peak(traffic.eager_mlp(LLAMA_8B, 3, 2)) == 2 * element_rows
    assert peak(traffic.fused_mlp(LLAMA_8B, 3, 2)) == element_rows
    assert peak(traffic.library_mlp(LLAMA_8B, 3, 2)) == 3 * element_rows
    assert peak((traffic.ideal_mlp(LLAMA_8B, 3, 2),)) == 0


def test_a_helper_moves_nothing() -> None:
    launch = traffic.helper_launch(traffic.eager_mlp(LLAMA_8B, 1, 2)[0])
    assert (launch.kernel, launch.passes, launch.bytes_moved, launch.flops, launch.intensity) == (
        *("eager_gate_helper", 0, 0, 0),
        0.0,
    )
