"""Tiles whose inner steps several programs share: whoever comes last puts gate and up together.

For each row tile the steps of the shared columns are one long line of positions, tile after tile, of
which every program takes an equal stretch, at least as long as a tile. So a tile is whole, or two
programs have a part of it, and the order in which two parts are added changes no bit. Neither waits
for the other. See `gatefuse_kernels.plan.sharing` for when and why.
"""

import triton.language as tl

from gatefuse_kernels.launch.jit import device
from gatefuse_kernels.swiglu.tiles import places


@device
def first_of_stretch(
    number: tl.tensor, columns: tl.tensor, sharers: tl.tensor, STEPS: tl.constexpr
) -> tl.tensor:
    """The first position of a row tile's stretch of this number; the next one's is the end of it."""
    return number * (columns * STEPS) // sharers


@device
def _owner(
    position: tl.tensor, columns: tl.tensor, sharers: tl.tensor, STEPS: tl.constexpr
) -> tl.tensor:
    """The last number n with first_of_stretch(n) <= position."""
    return ((position + 1) * sharers - 1) // (columns * STEPS)


@device
def _offset(
    part: tl.tensor, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, SWAPPED: tl.constexpr
) -> tl.tensor:
    """Where the elements of a part of gate lie; those of up follow."""
    offset = places(BLOCK_COLUMNS, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
    return part * (2 * BLOCK_ROWS * BLOCK_COLUMNS) + offset


@device
def put_together(
    gate: tl.tensor,
    up: tl.tensor,
    parts_ptr: tl.tensor,
    arrived_ptr: tl.tensor,
    column_tile: tl.tensor,
    row_tile: tl.tensor,
    row_tiles: tl.tensor,
    first_step: tl.tensor,
    columns: tl.tensor,
    sharers: tl.tensor,
    STEPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    SWAPPED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A shared tile's whole sums for the last of its programs; for the other nothing to store.

    Args:
        gate: this program's part of the sums, a float32 tile.
        up: likewise.
        parts_ptr: float32 `[2 * programs, 2, BLOCK_ROWS * BLOCK_COLUMNS]`: of each program the part
            that ends a tile, and the part that begins one.
        arrived_ptr: int32 `[columns * row_tiles]`, all zero between launches.
        column_tile: which of the shared columns.
        row_tile: which row tile.
        row_tiles: how many there are.
        first_step: the first inner step of this program's part.
        columns: column tiles that are shared.
        sharers: programs of each row tile that share them, no more than columns.
        STEPS: inner steps of a tile.
        BLOCK_ROWS: of the tile.
        BLOCK_COLUMNS: likewise.
        SWAPPED: the tile lies `[columns, rows]`.

    Returns:
        Gate, up, and whether they are whole.
    """
    first = _owner(column_tile * STEPS, columns, sharers, STEPS)
    last = _owner(column_tile * STEPS + STEPS - 1, columns, sharers, STEPS)
    is_whole = first == last
    if first != last:
        SIZE: tl.constexpr = BLOCK_ROWS * BLOCK_COLUMNS
        begins = first_step == 0
        beginning, ending = (
            2 * (first * row_tiles + row_tile) + 1,
            2 * (last * row_tiles + row_tile),
        )
        arrived = arrived_ptr + column_tile * row_tiles + row_tile
        # Who begins a tile comes to it at the end of a stretch, and mostly finds that the other, who
        # began with it, is done: then its own part need not pass through memory.
        is_whole = tl.atomic_add(arrived, 0, sem="acquire") == 1
        if not is_whole:
            own = tl.where(begins, beginning, ending)
            part = parts_ptr + _offset(own, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
            tl.store(part, gate)
            tl.store(part + SIZE, up)
            # All threads have stored before the one that speaks for the program says so.
            tl.debug_barrier()
            is_whole = tl.atomic_add(arrived, 1, sem="acq_rel") == 1
        if is_whole:
            other = tl.where(begins, ending, beginning)
            part = parts_ptr + _offset(other, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
            # From L2: this multiprocessor's L1 may hold a line from before the other wrote.
            gate += tl.load(part, cache_modifier=".cg")
            # Else the loads of both are begun at once, into registers that the sums have taken.
            tl.debug_barrier()
            up += tl.load(part + SIZE, cache_modifier=".cg")
            tl.store(arrived, 0)
    return gate, up, is_whole
