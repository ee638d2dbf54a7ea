"""The choice of tiles."""

from __future__ import annotations

import pytest

from gatefuse_kernels import plan
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.shapes import MAX_ROWS, MAX_WIDTH, DType, MlpShape

SHAPE = MlpShape(4096, 14336)


@pytest.mark.parametrize("shape", [SHAPE, MlpShape(2048, 6144), MlpShape(4096, 4096)], ids=str)
@pytest.mark.parametrize("capability", [8, 9, 10])
@pytest.mark.parametrize("dtype", DType)
def test_the_row_classes_meet_every_plan(dtype: DType, capability: int, shape: MlpShape) -> None:
    """What warm-up runs is what 1..max_rows rows can need: nothing compiles on a request."""
    for max_rows in (1, 15, 16, 17, 64, 65, 300, 513, 1000):
        warmed = {
            plan.choose(shape, rows, dtype, capability)
            for rows in plan.row_classes(max_rows, dtype, capability)
        }
        needed = {plan.choose(shape, rows, dtype, capability) for rows in range(1, max_rows + 1)}
        assert warmed == needed
        assert max(plan.row_classes(max_rows, dtype, capability)) <= max_rows


def test_each_launch_is_narrow_by_its_own_columns() -> None:
    wide, narrow = (plan.choose(shape, 16, DType.BF16) for shape in (SHAPE, MlpShape(2048, 6144)))
    assert wide.down != narrow.down
    wide, narrow = (plan.choose(shape, 128, DType.BF16) for shape in (SHAPE, MlpShape(2048, 6144)))
    mixed = plan.choose(MlpShape(4096, 4096), 128, DType.BF16)
    assert (mixed.gate_up, mixed.down) == (narrow.gate_up, wide.down)
    assert wide.gate_up != narrow.gate_up


@pytest.mark.parametrize("dtype", DType)
def test_every_choice_is_shipped(dtype: DType) -> None:
    """What the compiler is checked on is what runs."""
    plans = plan.shipped(dtype)
    gate_ups, downs = {tiles.gate_up for tiles in plans}, {tiles.down for tiles in plans}
    for shape in (SHAPE, MlpShape(2048, 6144), MlpShape(37, 101)):
        for rows in (1, 17, 33, 65, 129, 257, 5000):
            chosen = plan.choose(shape, rows, dtype)
            assert chosen.gate_up in gate_ups
            assert chosen.down in downs


@pytest.mark.parametrize("dtype", DType)
def test_unaligned_widths_get_the_narrow_tile_where_they_matter(dtype: DType) -> None:
    narrow = plan.shipped(dtype)[-1].gate_up
    assert plan.choose(MlpShape(4097, 14336), 16, dtype).gate_up == narrow
    assert plan.choose(MlpShape(4097, 14336), 16, dtype).down != narrow
    assert plan.choose(MlpShape(4096, 14335), 16, dtype).down == narrow
    assert plan.choose(MlpShape(4096, 14335), 16, dtype).gate_up != narrow


@pytest.mark.parametrize("dtype", DType)
def test_aligned_limits_fit_a_launch(dtype: DType) -> None:
    """The widest shape at the most rows still has an int32 grid, on axis 0 alone."""
    widest = MlpShape(MAX_WIDTH, MAX_WIDTH)
    if dtype is DType.FP32:
        # 64-column tiles: half the rows of the limit fill the grid.
        tiles = plan.choose(widest, MAX_ROWS, dtype)
        with pytest.raises(ValueError, match="programs"):
            tiles.gate_up.grid(MAX_ROWS, MAX_WIDTH)
    else:
        tiles = plan.choose(widest, MAX_ROWS, dtype)
        assert tiles.gate_up.grid(MAX_ROWS, MAX_WIDTH) <= plan.MAX_GRID
        assert tiles.down.grid(MAX_ROWS, MAX_WIDTH) <= plan.MAX_GRID


def test_grid() -> None:
    tile = Tile(16, 64, 128, 4, 4, True)
    assert tile.grid(1, 64) == 1
    assert tile.grid(17, 65) == 4
    assert tile.grid(65_537, 64) == 4097
