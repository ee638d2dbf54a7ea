"""First launch: h = act(x gate^T) * (x up^T), both products in one pass over x."""

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import kernel
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.swiglu.overlap import let_down_start
from gatefuse_kernels.swiglu.tiles import activate, existing, places, product, tile_of_program
from gatefuse_kernels.swiglu.variants import gate_up_variant
from gatefuse_kernels.weights.packed import MlpWeights


@kernel
def swiglu_gate_up(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    h_ptr: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    SWAPPED: tl.constexpr,
    GROUP: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    STARTS_LATE: tl.constexpr,
) -> None:
    """X [rows, HIDDEN], weight [2 * INTERMEDIATE, HIDDEN] -> h [rows, INTERMEDIATE].

    Tile origins are 64-bit scalars; offsets inside a tile fit 32 bits. Tokens past the edge are
    masked: they cost no traffic, where re-reading the last one would make every program ask for
    the same few lines of L2 (at one row `swiglu_down` took 36 % longer). Weight rows past the edge
    are clamped to the last one, computed and never stored. Either way loads stay 128 bits wide.
    The tail of the inner dimension is one masked step after the loop.
    """
    let_down_start(STARTS_EARLY)
    row_tile, column_tile = tile_of_program(
        tl.program_id(0), rows, INTERMEDIATE, BLOCK_ROWS, BLOCK_COLUMNS, GROUP
    )
    first_row = row_tile * BLOCK_ROWS
    first_column = column_tile * BLOCK_COLUMNS
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    rows_left = (rows - first_row).to(tl.int32)
    columns_left = (INTERMEDIATE - first_column).to(tl.int32)

    x_tile = x_ptr + first_row * HIDDEN
    gate_tile = weight_ptr + first_column * HIDDEN
    up_tile = weight_ptr + (first_column + INTERMEDIATE) * HIDDEN
    x_offset = row[:, None] * HIDDEN + inner[None, :]
    is_token = (row < rows_left)[:, None]
    weight_offset = tl.minimum(column, columns_left - 1)[:, None] * HIDDEN + inner[None, :]

    if SWAPPED:
        gate = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
        up = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    else:
        gate = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
        up = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    for start in range(0, HIDDEN - HIDDEN % BLOCK_INNER, BLOCK_INNER):
        x = tl.load(x_tile + start + x_offset, mask=is_token, other=0.0)
        gate = product(tl.load(gate_tile + start + weight_offset), x, gate, SWAPPED)
        up = product(tl.load(up_tile + start + weight_offset), x, up, SWAPPED)
    if HIDDEN % BLOCK_INNER != 0:
        start = HIDDEN - HIDDEN % BLOCK_INNER
        inside = (inner < HIDDEN % BLOCK_INNER)[None, :]
        x = tl.load(x_tile + start + x_offset, mask=is_token & inside, other=0.0)
        weight = tl.load(gate_tile + start + weight_offset, mask=inside, other=0.0)
        gate = product(weight, x, gate, SWAPPED)
        weight = tl.load(up_tile + start + weight_offset, mask=inside, other=0.0)
        up = product(weight, x, up, SWAPPED)

    let_down_start(STARTS_LATE)
    h = (activate(gate, ACTIVATION) * up).to(h_ptr.dtype.element_ty)
    h_tile = h_ptr + first_row * INTERMEDIATE + first_column
    offset = places(INTERMEDIATE, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
    valid = existing(rows_left, columns_left, BLOCK_ROWS, BLOCK_COLUMNS, SWAPPED)
    tl.store(h_tile + offset, h, mask=valid)


class GateUp:
    """The launch for one MLP's weights, one tile and overlap."""

    def __init__(self, weights: MlpWeights, tile: Tile, overlap: Overlap) -> None:
        """Launch nothing yet; `overlap` says when a dependent down may start."""
        self._weight = weights.gate_up
        self._tile = tile
        self._variant = gate_up_variant(swiglu_gate_up, weights, tile, overlap)

    def __call__(self, x: torch.Tensor, h: torch.Tensor) -> None:
        """Compute h `[M, I]`, fully overwritten, of x `[M, H]` on the current stream and device.

        Both are contiguous, of the weights' dtype and start on 16 bytes; M >= 1.
        """
        rows, intermediate = h.shape
        self._variant.launch(self._tile.grid(rows, intermediate), x, self._weight, h, rows)
