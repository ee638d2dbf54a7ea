"""down with operands through the copy engine (TMA), for compute capability 9.0 and later."""

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import kernel
from gatefuse_kernels.launch.tensor_maps import TiledMatrix
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.swiglu.overlap import wait_for_h
from gatefuse_kernels.swiglu.split_sum import SplitWorkspace, store_sum
from gatefuse_kernels.swiglu.tiles import product, tile_of_program
from gatefuse_kernels.swiglu.variants import down_variant
from gatefuse_kernels.weights.packed import MlpWeights


@kernel
def swiglu_down_tma(
    h: tl.tensor_descriptor,
    weight: tl.tensor_descriptor,
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

    What the copy engine reads past an edge is zero. Where the sum is split, each program takes a
    stretch of inner steps; see `store_sum`.
    """
    tiles = tl.cdiv(rows, BLOCK_ROWS) * tl.cdiv(HIDDEN, BLOCK_COLUMNS)
    tile = tl.program_id(0) % tiles
    part = tl.program_id(0) // tiles
    row_tile, column_tile = tile_of_program(tile, rows, HIDDEN, BLOCK_ROWS, BLOCK_COLUMNS, GROUP)
    first_row = row_tile * BLOCK_ROWS
    first_column = column_tile * BLOCK_COLUMNS
    h_row = first_row.to(tl.int32)
    weight_row = first_column.to(tl.int32)

    if SWAPPED:
        total = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    else:
        total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    STEPS: tl.constexpr = (INTERMEDIATE + BLOCK_INNER - 1) // BLOCK_INNER
    STRETCH: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS * BLOCK_INNER
    wait_for_h(IS_OVERLAPPED)
    for start in range(part * STRETCH, tl.minimum((part + 1) * STRETCH, INTERMEDIATE), BLOCK_INNER):
        tokens = h.load([h_row, start])
        total = product(weight.load([weight_row, start]), tokens, total, SWAPPED)

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


class DownTma:
    """The launch for one MLP's weights, one tile through descriptors and overlap.

    Both widths are multiples of 16 bytes.
    """

    def __init__(
        self, weights: MlpWeights, tile: Tile, overlap: Overlap, workspace: SplitWorkspace
    ) -> None:
        """Launch nothing yet; see `Down`."""
        self._weight = TiledMatrix(weights.down, (tile.columns, tile.inner))
        self._tile = tile
        self._workspace = workspace
        self._variant = down_variant(swiglu_down_tma, weights, tile, overlap)

    def __call__(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """Compute out of h; see `Down`."""
        tile = self._tile
        rows, hidden = out.shape
        parts, arrived = self._workspace.for_tile(tile, rows, hidden)
        self._variant.launch(
            tile.grid(rows, hidden),
            TiledMatrix(h, (tile.rows, tile.inner)),
            self._weight,
            out,
            parts,
            arrived,
            rows,
        )
