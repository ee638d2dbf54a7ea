"""Columns of specialised tiles that fill the multiprocessors evenly.

A specialised program stays on its multiprocessor for tile after tile, so a launch takes as long as the
program with the most tiles: the waves, times what one takes. Columns that are one even wave for one
width on one GPU can be two, the second almost empty, for another; so a plan that is used where it was
not measured keeps its kind of tile, and chooses the columns anew.
"""

from dataclasses import replace

from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.fitting import GATE_UP_PRODUCTS, fitted
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.tile import Tile

COLUMNS = range(32, 129, 16)
"""What is chosen from, and timed; more leave the sums too few registers."""

_TOKENS = 8
"""Rows of tokens that cost a tile as much as a column of gate and up: a narrow one fetches them more often."""

_IN_PARTS = 1.1
"""What a tile whose columns are no power of two takes for its size: each part reads the tokens again."""


def wave_time(tile: Tile, rows: int, columns: int, processors: int) -> float:
    """What gate_up `[rows, columns]` takes with specialised tiles of one number of rows, to compare them.

    In no unit, but in the order of what was measured on an H200: of 112 and 128 columns the first is
    faster at 512 rows of 4096x14336 (173.3 us in 4 waves, 177.7 in 4), the second at 1024 (369 in 8, 331 in
    7); of 80, 112 and 128 the first at 256 rows of 5120x25600 (233 us in 5 waves, 243 in 4).
    """
    waves = -(-tile.programs(rows, columns) // processors)
    one = tile.columns + tile.rows / _TOKENS
    return waves * one * (_IN_PARTS if len(tile.parts) > 1 else 1.0)


def in_even_waves(tile: Tile, rows: int, columns: int, dtype: DType, device: DeviceProfile) -> Tile:
    """The specialised tile with the columns that take the least at `rows` rows, the widest of equals."""
    return min(
        with_any_columns(tile, dtype, device),
        key=lambda each: wave_time(each, rows, columns, device.multiprocessors),
    )


def with_any_columns(tile: Tile, dtype: DType, device: DeviceProfile) -> tuple[Tile, ...]:
    """All that `in_even_waves` can make of a specialised tile, from wide to narrow."""
    several = (replace(tile, columns=columns) for columns in reversed(COLUMNS))
    return tuple(fitted(each, GATE_UP_PRODUCTS, dtype, device) for each in several)
