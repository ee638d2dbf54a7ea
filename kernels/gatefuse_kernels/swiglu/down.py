"""Second launch: out = h down^T."""

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import kernel
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.swiglu.overlap import wait_for_h
from gatefuse_kernels.swiglu.split_sum import SplitWorkspace, store_sum
from gatefuse_kernels.swiglu.tiles import product, tile_of_program
from gatefuse_kernels.swiglu.variants import down_variant
from gatefuse_kernels.weights.packed import MlpWeights


@kernel
def swiglu_down(
    h_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    arrived_ptr: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    SWAPPED: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_OVERLAPPED: tl.constexpr,
) -> None:
    """H [rows, INTERMEDIATE], weight [HIDDEN, INTERMEDIATE] -> out [rows, HIDDEN].

    Edges are handled as in `swiglu_gate_up`. Where the sum is split, each program takes a stretch
    of whole inner steps, the last one also the tail; see `store_sum`.
    """
    tiles = tl.cdiv(rows, BLOCK_ROWS) * tl.cdiv(HIDDEN, BLOCK_COLUMNS)
    tile = tl.program_id(0) % tiles
    part = tl.program_id(0) // tiles
    row_tile, column_tile = tile_of_program(tile, rows, HIDDEN, BLOCK_ROWS, BLOCK_COLUMNS, GROUP)
    first_row = row_tile * BLOCK_ROWS
    first_column = column_tile * BLOCK_COLUMNS
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    rows_left = (rows - first_row).to(tl.int32)
    columns_left = (HIDDEN - first_column).to(tl.int32)

    h_tile = h_ptr + first_row * INTERMEDIATE
    weight_tile = weight_ptr + first_column * INTERMEDIATE
    h_offset = row[:, None] * INTERMEDIATE + inner[None, :]
    is_token = (row < rows_left)[:, None]
    weight_offset = tl.minimum(column, columns_left - 1)[:, None] * INTERMEDIATE + inner[None, :]

    if SWAPPED:
        total = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    else:
        total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    WHOLE: tl.constexpr = INTERMEDIATE - INTERMEDIATE % BLOCK_INNER
    STRETCH: tl.constexpr = (WHOLE // BLOCK_INNER + SPLITS - 1) // SPLITS * BLOCK_INNER
    wait_for_h(IS_OVERLAPPED)
    for start in range(part * STRETCH, tl.minimum((part + 1) * STRETCH, WHOLE), BLOCK_INNER):
        h = tl.load(h_tile + start + h_offset, mask=is_token, other=0.0)
        total = product(tl.load(weight_tile + start + weight_offset), h, total, SWAPPED)
    if INTERMEDIATE % BLOCK_INNER != 0:
        # Zeros add nothing to the other programs' parts.
        inside = ((inner < INTERMEDIATE % BLOCK_INNER) & (part == SPLITS - 1))[None, :]
        h = tl.load(h_tile + WHOLE + h_offset, mask=is_token & inside, other=0.0)
        weight = tl.load(weight_tile + WHOLE + weight_offset, mask=inside, other=0.0)
        total = product(weight, h, total, SWAPPED)

    store_sum(
        total,
        out_ptr,
        parts_ptr,
        arrived_ptr,
        tile,
        part,
        first_row,
        first_column,
        rows,
        HIDDEN,
        BLOCK_ROWS,
        BLOCK_COLUMNS,
        SWAPPED,
        SPLITS,
    )


class Down:
    """The launch for one MLP's weights, one tile and overlap."""

    def __init__(
        self, weights: MlpWeights, tile: Tile, overlap: Overlap, workspace: SplitWorkspace
    ) -> None:
        """Launch nothing yet.

        Args:
            weights: of h's dtype.
            tile: from `plan.choose`.
            overlap: as given to the gate_up launch just before.
            workspace: for split sums.
        """
        self._weight = weights.down
        self._tile = tile
        self._workspace = workspace
        self._variant = down_variant(swiglu_down, weights, tile, overlap)

    def __call__(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """Compute out `[M, H]`, fully overwritten, of h `[M, I]` on the current stream and device.

        Both are contiguous, of the weights' dtype and start on 16 bytes; M >= 1.
        """
        rows, hidden = out.shape
        parts, arrived = self._workspace.for_tile(self._tile, rows, hidden)
        self._variant.launch(
            self._tile.grid(rows, hidden), h, self._weight, out, parts, arrived, rows
        )
