"""The tiles worth timing for one launch: what fits a multiprocessor, and could be fast. No torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from gatefuse_kernels.plan import DeviceProfile, Tile
from gatefuse_kernels.plan.fitting import DOWN_PRODUCTS, GATE_UP_PRODUCTS, tile_fits
from gatefuse_kernels.plan.sharing import shares, side_by_side
from gatefuse_kernels.plan.waves import COLUMNS, wave_time
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tile import BOX, STREAMED_ROWS

_LINE_BYTES = 64
"""The shortest inner step worth loading, half a cache line; the longest is 16 of them."""

_BYTES_IN_FLIGHT = 24 << 10
"""Of weights, for each program: with less, a memory-bound launch waits for DRAM (Little's law)."""

_SUMS_FROM_SHARED, _SUMS_FROM_REGISTERS, _SUMS_SINGLE = 128, 64, 32
"""float32 sums per lane beyond which the compiler spills, by where operands come from; in fp32 both
operands lie in registers, element by element."""

_SHORTEST, _DEEPEST = 3, 8
"""Stages of a pipeline to begin with."""

_STREAMED_SUMS = (16, 64)
"""A lane of a streamed tile has from two to eight 128-bit loads of weights on their way."""

_BUSY = 0.4
"""Share of the multiprocessors: a launch that leaves more of them idle loses to a narrower tile."""

_SPECIALIZED_ROWS = 64
"""With fewer the copy engine fills most of a tile with zeros, which holds up what it fetches."""

_NEARLY = 1.15
"""Columns whose waves should take no more than so many times the least are worth timing."""

_FILLED = 0.75
"""Share of the multiprocessors for which split sums should have a program."""


@dataclass(frozen=True, slots=True)
class LaunchSize:
    """One product on one device.

    Attributes:
        products: weight matrices multiplied in one pass over the tokens.
        rows: M.
        columns: output features.
        inner: the contracted width.
        dtype: element type.
        device: the GPU.
    """

    products: int
    rows: int
    columns: int
    inner: int
    dtype: DType
    device: DeviceProfile

    def fits(self, tile: Tile) -> bool:
        """Whether the tile can run."""
        return tile_fits(tile, self.products, self.dtype, self.device)

    @property
    def most_sums(self) -> int:
        """float32 sums of a lane."""
        if self.dtype is DType.FP32:
            return _SUMS_SINGLE
        return _SUMS_FROM_SHARED if self.device.operands_from_shared else _SUMS_FROM_REGISTERS


def gate_up_size(shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile) -> LaunchSize:
    """The gate and up products of `rows` rows."""
    return LaunchSize(GATE_UP_PRODUCTS, rows, shape.intermediate, shape.hidden, dtype, device)


def down_size(shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile) -> LaunchSize:
    """The down product of `rows` rows."""
    return LaunchSize(DOWN_PRODUCTS, rows, shape.hidden, shape.intermediate, dtype, device)


def candidates(size: LaunchSize) -> tuple[Tile, ...]:
    """Tiles for the launch, in no order."""
    is_few = size.rows <= size.device.crossover_rows(size.dtype)
    found = [
        tile
        for tile in _pipelines(size)
        if tile.sums_per_lane(size.products) <= size.most_sums
        and _suits_the_mma(tile)
        and (_keeps_memory_busy if is_few else _keeps_the_mma_busy)(tile, size)
    ]
    whole = [cut for tile in found for cut in (*_with_splits(tile, size), *_shared_out(tile, size))]
    # A narrow output may have too few programs however it is cut.
    most = max((tile.programs(size.rows, size.columns) for tile in whole), default=0)
    wanted = min(_BUSY * size.device.multiprocessors, most / 2)
    busy = (tile for tile in whole if tile.programs(size.rows, size.columns) >= wanted)
    return (*_streamed(size), *_specialized(size), *busy)


def neighbours(tile: Tile, size: LaunchSize) -> tuple[Tile, ...]:
    """What is worth timing once `tile` proved fast: the depths between, another order, more programs."""
    if tile.is_streamed:
        return ()
    near = [replace(tile, stages=stages) for stages in range(2, tile.stages + 3)]
    if tile.rows < size.rows:
        near += [replace(tile, group=group) for group in (1, 4, 16)]
    programs = tile.programs(size.rows, size.columns)
    if size.products == DOWN_PRODUCTS and programs < 2 * size.device.multiprocessors:
        near += [replace(tile, splits=splits) for splits in (2, 3, 4)]
    return tuple(each for each in near if each != tile and size.fits(each))


def _with_splits(tile: Tile, size: LaunchSize) -> Iterator[Tile]:
    """The tile, and where it leaves multiprocessors idle the sums in as many parts as fill them."""
    yield tile
    if size.products != DOWN_PRODUCTS:
        return
    programs = tile.programs(size.rows, size.columns)
    if programs >= size.device.multiprocessors:
        return
    fewest = max(2, math.ceil(_FILLED * size.device.multiprocessors / programs))
    # The next power of two, too: it divides the steps evenly.
    for splits in sorted({fewest, 1 << (fewest - 1).bit_length()}):
        if splits * tile.inner <= size.inner:
            yield replace(tile, splits=splits)


def _shared_out(tile: Tile, size: LaunchSize) -> Iterator[Tile]:
    """The tile with its last waves shared out, where the last one is not full."""
    if size.products != GATE_UP_PRODUCTS or not (tile.descriptors and tile.swapped):
        return
    at_once = side_by_side(tile, size.products, size.dtype.itemsize, size.device)
    shared_out = replace(tile, share_tail=True)
    if shares(shared_out, size.rows, size.columns, at_once).columns:
        yield shared_out


def _pipelines(size: LaunchSize) -> Iterator[Tile]:
    """Every cut of the output with its shortest pipelines and the deepest that fits."""
    steps = [step for step in (16, 32, 64, 128, 256, 512) if _is_step(step, size)]
    has_descriptors = size.device.capability >= (9, 0) and size.dtype is not DType.FP32
    # Where arithmetic takes the time, the copy engine's help is never in the way.
    kinds = ((False, True) if size.rows <= 64 else (True,)) if has_descriptors else (False,)
    for rows, columns, step, warps, swapped, descriptors in product(
        _row_tiles(size.rows),
        (16, 32, 64, 128, 256),
        steps,
        (4, 8),
        _sides(size),
        kinds,
    ):
        if descriptors and step > BOX:
            continue
        tile = Tile(rows, columns, step, warps, _SHORTEST, swapped, descriptors=descriptors)
        yield from _shortest_and_deepest(tile, size)


def _shortest_and_deepest(tile: Tile, size: LaunchSize) -> Iterator[Tile]:
    """The tile, with that depth and with the deepest that fits; none where neither does.

    Two programs side by side, or one with more ahead; `neighbours` looks in between.
    """
    deeper = (replace(tile, stages=stages) for stages in range(_SHORTEST, _DEEPEST + 1))
    depths = [deep for deep in deeper if size.fits(deep)]
    yield from dict.fromkeys(depths[:1] + depths[-1:])


def _streamed(size: LaunchSize) -> Iterator[Tile]:
    """Tiles without tensor cores, for as few tokens as they are good for."""
    if size.rows > STREAMED_ROWS:
        return
    fewest, most = _STREAMED_SUMS
    for columns, inner, warps in product((1, 2, 4, 8), (512, 1024, 2048, 4096), (4, 8)):
        tile = Tile(size.rows, columns, inner, warps, 1, False)
        if inner <= size.inner and fewest <= tile.sums_per_lane(size.products) <= most:
            yield tile


def _specialized(size: LaunchSize) -> Iterator[Tile]:
    """Tiles whose fetching is a warp's own, of columns that make even waves."""
    if size.products != GATE_UP_PRODUCTS or size.rows < _SPECIALIZED_ROWS:
        return
    rows, warps = (64, 4) if size.rows == _SPECIALIZED_ROWS else (128, 8)
    tiles = [
        Tile(rows, columns, inner, warps, _SHORTEST, False, descriptors=True, specialized=True)
        for columns, inner in product(COLUMNS, (64, 128))
    ]
    where = size.rows, size.columns, size.device.multiprocessors
    most = _NEARLY * min(wave_time(tile, *where) for tile in tiles)
    for tile in (each for each in tiles if wave_time(each, *where) <= most):
        yield from _shortest_and_deepest(tile, size)


def _row_tiles(rows: int) -> tuple[int, ...]:
    if rows <= 16:
        return (16,)
    if rows <= 32:
        return (16, 32)
    if rows <= 64:
        return (32, 64)
    return (64, 128) if rows <= 128 else (128, 256)


def _sides(size: LaunchSize) -> tuple[bool, ...]:
    """Which sides of the MMA to try, as `Tile.swapped`.

    Few tokens go on its N side, which may be narrow. Of many it hardly matters; a tile whose tokens
    are on the M side leaves its sums in the order in which they are stored.
    """
    if size.rows <= 64:
        return (True,)
    return (False,) if size.products == DOWN_PRODUCTS else (True, False)


def _is_step(step: int, size: LaunchSize) -> bool:
    lines = step * size.dtype.itemsize // _LINE_BYTES
    return 1 <= lines <= 16 and step <= size.inner


def _suits_the_mma(tile: Tile) -> bool:
    """Eight warps only where there is work for them, and the MMA's M side is not padded."""
    side = tile.columns if tile.swapped else tile.rows
    other = tile.rows if tile.swapped else tile.columns
    if tile.warps == 8 and side * other < 64 * 64:
        return False
    return (side >= other or side >= 64) and (tile.rows < 64 or tile.columns >= 32)


def _keeps_memory_busy(tile: Tile, size: LaunchSize) -> bool:
    weights = size.products * tile.columns * tile.inner * size.dtype.itemsize * tile.stages
    return weights >= _BYTES_IN_FLIGHT


def _keeps_the_mma_busy(tile: Tile, size: LaunchSize) -> bool:
    """A tile too small loads more than it multiplies; a long step only makes the pipeline shorter."""
    area = tile.rows * tile.columns * size.products
    least = 32 * 32 if size.dtype is DType.FP32 else 64 * 128
    return area >= least and tile.inner * size.dtype.itemsize <= 4 * _LINE_BYTES
