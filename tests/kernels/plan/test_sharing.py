"""How many tiles of a launch are shared out, and among how many programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatefuse_kernels.plan import KNOWN_DEVICES, Tile
from gatefuse_kernels.plan.sharing import Shares, shares, side_by_side

H200 = KNOWN_DEVICES["nvidia-h200"]
TILE = Tile(128, 128, 64, 8, 4, True, descriptors=True, share_tail=True)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (256, 112, Shares(112, 132, 132)),  # 224 tiles: the second wave has 92, both are shared
        (512, 112, Shares(46, 132, 132 + 264)),  # 448: 52 of the fourth wave and the third
        (256, 200, Shares(68, 132, 132 + 264)),
        (384, 112, Shares(68, 132, 132 + 132)),  # 336 in rows of three
        (640, 112, Shares(33, 130, 130 + 395)),  # 560 in rows of five, which do not divide a wave
        (128, 264, Shares(0, 0, 264)),  # whole waves
        (128, 96, Shares(0, 0, 96)),  # less than a wave
        (9 * 128, 112, Shares(0, 0, 1008)),  # more row tiles than a group
    ],
)
def test_the_last_wave_and_the_one_before(rows: int, columns: int, expected: Shares) -> None:
    found = shares(TILE, rows, 128 * columns, 132)
    assert found == expected
    row_tiles = rows // 128
    others = found.grid - found.programs
    assert others == (columns - found.columns) * row_tiles, "every tile has its programs"
    assert found.programs % row_tiles == 0
    assert found.programs <= found.columns * row_tiles, "a stretch is at least a tile"


def test_a_tile_that_does_not_ask_for_it_shares_nothing() -> None:
    assert shares(replace(TILE, share_tail=False), 256, 112 * 128, 132) == Shares(0, 0, 224)


def test_programs_side_by_side_are_limited_by_shared_memory() -> None:
    """Four stages of (128 + 2 * 128) x 64 bf16 are 192 KiB of 227; half as many columns, 128."""
    assert side_by_side(TILE, 2, 2, H200) == 132
    assert side_by_side(replace(TILE, columns=64), 2, 2, H200) == 132
    assert side_by_side(replace(TILE, columns=64, stages=3), 2, 2, H200) == 264
    assert side_by_side(replace(TILE, columns=64, stages=3, warps=64 // 2), 2, 2, H200) == 264
