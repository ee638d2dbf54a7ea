"""Which tiles of a launch are shared out among programs by inner steps, so that no wave is part empty.

Tiles of one size take the same time, so a launch whose tiles are 1.7 waves of what the device runs at
once takes as long as 2 waves. Here the columns of the last wave, and those of about one wave before
it, are cut into equal stretches of inner steps: Stream-K with a data-parallel part (Osama et al.
2023, arXiv 2301.03598, section 5.2). All row tiles are cut at the same places, each by programs of
its own, so that they read the same weights at the same time: cut differently, each would fetch them
from DRAM, which at 256 rows of 4096x14336 on an H200 takes 146 us instead of 96.
"""

from typing import NamedTuple

from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.tile import Tile

_RESERVED_BYTES = 1024
"""Shared memory that the system keeps for itself in each block."""

_WARPS_OF_A_MULTIPROCESSOR = 64

_SIDE_BY_SIDE = 2
"""Programs of large tiles on one multiprocessor: their sums fill its registers."""


class Shares(NamedTuple):
    """A launch's programs: first those that share columns, then one for each of the other tiles.

    Attributes:
        columns: column tiles that are shared, from the first on; 0 for none.
        programs: that share them, an equal number for each row tile.
        grid: all programs of the launch.
    """

    columns: int
    programs: int
    grid: int


def side_by_side(tile: Tile, products: int, itemsize: int, device: DeviceProfile) -> int:
    """Programs that the device runs at once, by its shared memory and warps.

    Args:
        tile: of the launch.
        products: weight matrices multiplied in one pass.
        itemsize: bytes per element.
        device: where.
    """
    shared = tile.shared_bytes(products, itemsize) + _RESERVED_BYTES
    by_memory = (device.shared_bytes_per_block + _RESERVED_BYTES) // shared
    most = min(by_memory, _WARPS_OF_A_MULTIPROCESSOR // tile.warps, _SIDE_BY_SIDE)
    return device.multiprocessors * max(1, most)


def shares(tile: Tile, rows: int, columns: int, at_once: int) -> Shares:
    """How an output `[rows, columns]` is shared out.

    Args:
        tile: of the launch, not split.
        rows: M >= 1.
        columns: output features.
        at_once: programs that run side by side.

    Raises:
        ValueError: more programs than a launch can have.
    """
    tiles = tile.grid(rows, columns)
    row_tiles = -(-rows // tile.rows)
    is_worth_it = tiles > at_once and tiles % at_once > 0
    # Tiles are in the order of their columns only if all row tiles are one group.
    if not tile.share_tail or not is_worth_it or row_tiles > min(tile.group, at_once):
        return Shares(0, 0, tiles)
    whole_columns = (tiles // at_once - 1) * at_once // row_tiles
    programs = at_once // row_tiles * row_tiles
    return Shares(
        tiles // row_tiles - whole_columns, programs, programs + whole_columns * row_tiles
    )
