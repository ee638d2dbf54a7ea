"""Sums in parts: several programs share an output tile, and the last of them adds up all parts.

Whoever comes last adds the parts in their order, not in that of arrival, so the bits are the same
each time. No program waits for another, so nothing has to be resident together.
"""

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import device
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.swiglu.tiles import existing, places


@device
def store_sum(
    total: tl.tensor,
    out_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    arrived_ptr: tl.tensor,
    tile: tl.tensor,
    part: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    rows: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    SWAPPED: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Store a tile of out `[rows, COLUMNS]`: at once, or of several parts by whoever comes last.

    Args:
        total: this program's part of the sums, a float32 tile.
        out_ptr: of the whole matrix.
        parts_ptr: float32 `[tiles, SPLITS, BLOCK_ROWS * BLOCK_COLUMNS]`.
        arrived_ptr: int32 `[tiles]`, all zero between launches.
        tile: number of the tile.
        part: number of the part.
        first_row: int64, of the tile.
        first_column: int64, likewise.
        rows: of the matrix.
        COLUMNS: likewise.
        BLOCK_ROWS: of the tile.
        BLOCK_COLUMNS: likewise.
        SWAPPED: the tile lies `[columns, rows]`.
        SPLITS: parts of a tile.
    """
    rows_left = (rows - first_row).to(tl.int32)
    columns_left = (COLUMNS - first_column).to(tl.int32)
    valid = existing(rows_left, columns_left, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
    if SPLITS > 1:
        SIZE: tl.constexpr = BLOCK_ROWS * BLOCK_COLUMNS
        first = parts_ptr + tile.to(tl.int64) * (SPLITS * SIZE)
        offset = places(BLOCK_COLUMNS, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
        tl.store(first + part * SIZE + offset, total, mask=valid)
        # All threads have stored before the one that speaks for the program says so.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            # From L2: this multiprocessor's L1 may hold a line from before the others wrote.
            total = tl.load(first + offset, mask=valid, other=0.0, cache_modifier=".cg")
            for other in tl.static_range(1, SPLITS):
                total += tl.load(
                    first + other * SIZE + offset, mask=valid, other=0.0, cache_modifier=".cg"
                )
            tl.store(arrived_ptr + tile, 0)
        valid = valid & is_last
    out_tile = out_ptr + first_row * COLUMNS + first_column
    out_offset = places(COLUMNS, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
    tl.store(out_tile + out_offset, total.to(out_ptr.dtype.element_ty), mask=valid)


_FEWEST = 1024
"""Counters to begin with."""


class SplitWorkspace:
    """The counters of one MLP's split sums, one set for each stream it ran on.

    Calls that share a stream follow one another; a graph's replays must follow whatever else runs
    with the counters that it captured (see `GraphedMlp`).
    """

    def __init__(self, device: torch.device) -> None:
        """Hold no counters yet."""
        self._device = device
        self._unsplit = (
            torch.empty(1, dtype=torch.float32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )
        self._arrived: dict[int, torch.Tensor] = {}
        self._outgrown: list[torch.Tensor] = []

    def for_tile(self, tile: Tile, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for the parts and the counters of one launch on the current stream.

        Args:
            tile: of the launch.
            rows: M.
            columns: output features.

        Returns:
            float32 parts, uninitialised, and int32 counters, zero; one element each where the tile
            is not split.
        """
        if tile.splits == 1:
            return self._unsplit
        programs = tile.programs(rows, columns)
        return self._take(programs * tile.rows * tile.columns, programs // tile.splits)

    def for_sharing(
        self, tile: Tile, programs: int, tiles: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Likewise for programs that share tiles of two products; see `put_together`."""
        if programs == 0:
            return self._unsplit
        return self._take(4 * programs * tile.rows * tile.columns, tiles)

    def prepare_capture(self) -> None:
        """Hold as many counters for the current stream as any other has.

        A capture on it that another stream's run went before then zeroes none, which would be a launch.
        """
        most = max((held.numel() for held in self._arrived.values()), default=0)
        if most:
            self._counters(most)

    def _take(self, elements: int, tiles: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts = torch.empty(elements, dtype=torch.float32, device=self._device)
        return parts, self._counters(tiles)

    def _counters(self, tiles: int) -> torch.Tensor:
        is_cuda = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device).cuda_stream if is_cuda else 0
        held = self._arrived.get(stream)
        if held is not None and held.numel() >= tiles:
            return held
        fresh = torch.zeros(max(tiles, _FEWEST), dtype=torch.int32, device=self._device)
        if is_cuda and torch.cuda.is_current_stream_capturing():
            # Zeroed by each replay of this graph, and by nothing else: of no use to other calls.
            return fresh
        if held is not None:
            # Graphs that captured it go on counting in it.
            self._outgrown.append(held)
        self._arrived[stream] = fresh
        return fresh
