"""One or two tokens: both products without tensor cores, as a plain read of the weights.

Each program owns a few weight rows, asks for them in 128-bit loads straight into registers, and
multiplies them by the tokens on the CUDA cores. Thousands of such programs keep DRAM as busy as a
kernel that only reads: at 4096x14336 on an H200, gate_up takes 53.7 us where reading its weights
takes 53.8, and kernels that pass the weights through shared memory to tensor cores 57.3. Multiplying
is free up to two tokens; from four on it takes longer than the weights' way from DRAM.
"""

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import Variant, device, kernel
from gatefuse_kernels.plan import Overlap, Tile
from gatefuse_kernels.swiglu.overlap import let_down_start, wait_for_h
from gatefuse_kernels.swiglu.tiles import activate
from gatefuse_kernels.weights.packed import MlpWeights


@device
def _weights(pointer: tl.tensor, inside: tl.tensor, IS_WHOLE: tl.constexpr) -> tl.tensor:
    """A tile of weights as float32; evict_first: each weight is read once."""
    if IS_WHOLE:
        return tl.load(pointer, eviction_policy="evict_first").to(tl.float32)
    else:
        tile = tl.load(pointer, mask=inside, other=0.0, eviction_policy="evict_first")
        return tile.to(tl.float32)


@device
def _token(pointer: tl.tensor, inside: tl.tensor, IS_WHOLE: tl.constexpr) -> tl.tensor:
    """A stretch of a token's row as `[1, inner]` float32."""
    if IS_WHOLE:
        return tl.load(pointer).to(tl.float32)[None, :]
    else:
        return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)[None, :]


@device
def _products(weight: tl.tensor, token: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """Products of a `[columns, inner]` tile and a token, to be added up later.

    With two tokens a thread adds up the eight products of each of its loads at once: half as many
    registers would otherwise have room for the programs that keep DRAM busy.
    """
    products = weight * token
    if ROWS == 1:
        return products
    else:
        return tl.sum(tl.reshape(products, (weight.shape[0], weight.shape[1] // 8, 8)), 2)


@device
def _zeros(BLOCK_COLUMNS: tl.constexpr, BLOCK_INNER: tl.constexpr, ROWS: tl.constexpr) -> tl.tensor:
    """What `_products` are added to."""
    if ROWS == 1:
        return tl.zeros((BLOCK_COLUMNS, BLOCK_INNER), tl.float32)
    else:
        return tl.zeros((BLOCK_COLUMNS, BLOCK_INNER // 8), tl.float32)


@device
def _weight_rows(
    first: tl.tensor, column: tl.tensor, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
) -> tl.tensor:
    """Weight row of each of a program's columns; past the edge the last one again, never stored."""
    if COLUMNS % BLOCK_COLUMNS == 0:
        return column
    else:
        return tl.minimum(column, (COLUMNS - 1 - first).to(tl.int32))


@kernel
def swiglu_gate_up_streamed(
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
    STARTS_DOWN: tl.constexpr,
) -> None:
    """X [rows, HIDDEN], weight [2 * INTERMEDIATE, HIDDEN] -> h [rows, INTERMEDIATE]."""
    let_down_start(STARTS_DOWN)
    # Constant divisors: a program is so short that divisions would show.
    COLUMN_TILES: tl.constexpr = (INTERMEDIATE + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
    first_row = (tl.program_id(0) // COLUMN_TILES).to(tl.int64) * BLOCK_ROWS
    first_column = (tl.program_id(0) % COLUMN_TILES).to(tl.int64) * BLOCK_COLUMNS
    column = tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    weight_row = _weight_rows(first_column, column, INTERMEDIATE, BLOCK_COLUMNS)
    offset = weight_row[:, None] * HIDDEN + inner[None, :]
    gate_tile = weight_ptr + first_column * HIDDEN + offset
    up_tile = gate_tile + tl.full((), INTERMEDIATE, tl.int64) * HIDDEN
    # A second token that does not exist is the first again, and not stored.
    x_row = x_ptr + first_row * HIDDEN + inner
    has_second = first_row + 1 < rows
    x_row_2 = x_row + tl.where(has_second, HIDDEN, 0)

    gate_sum = _zeros(BLOCK_COLUMNS, BLOCK_INNER, BLOCK_ROWS)
    up_sum = gate_sum
    gate_sum_2 = gate_sum
    up_sum_2 = gate_sum
    for start in range(0, HIDDEN, BLOCK_INNER):
        inside = inner < HIDDEN - start
        IS_WHOLE: tl.constexpr = HIDDEN % BLOCK_INNER == 0
        gate = _weights(gate_tile + start, inside[None, :], IS_WHOLE)
        up = _weights(up_tile + start, inside[None, :], IS_WHOLE)
        x = _token(x_row + start, inside, IS_WHOLE)
        gate_sum += _products(gate, x, BLOCK_ROWS)
        up_sum += _products(up, x, BLOCK_ROWS)
        if BLOCK_ROWS == 2:
            x = _token(x_row_2 + start, inside, IS_WHOLE)
            gate_sum_2 += _products(gate, x, BLOCK_ROWS)
            up_sum_2 += _products(up, x, BLOCK_ROWS)

    h_tile = h_ptr + first_row * INTERMEDIATE + first_column + column
    valid = column < INTERMEDIATE - first_column
    h = activate(tl.sum(gate_sum, 1), ACTIVATION) * tl.sum(up_sum, 1)
    tl.store(h_tile, h.to(h_ptr.dtype.element_ty), mask=valid)
    if BLOCK_ROWS == 2:
        h = activate(tl.sum(gate_sum_2, 1), ACTIVATION) * tl.sum(up_sum_2, 1)
        tl.store(h_tile + INTERMEDIATE, h.to(h_ptr.dtype.element_ty), mask=valid & has_second)


@kernel
def swiglu_down_streamed(
    h_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    IS_OVERLAPPED: tl.constexpr,
) -> None:
    """H [rows, INTERMEDIATE], weight [HIDDEN, INTERMEDIATE] -> out [rows, HIDDEN].

    The first stretch of weights is asked for before the wait for h.
    """
    COLUMN_TILES: tl.constexpr = (HIDDEN + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
    first_row = (tl.program_id(0) // COLUMN_TILES).to(tl.int64) * BLOCK_ROWS
    first_column = (tl.program_id(0) % COLUMN_TILES).to(tl.int64) * BLOCK_COLUMNS
    column = tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    weight_row = _weight_rows(first_column, column, HIDDEN, BLOCK_COLUMNS)
    offset = weight_row[:, None] * INTERMEDIATE + inner[None, :]
    weight_tile = weight_ptr + first_column * INTERMEDIATE + offset
    h_row = h_ptr + first_row * INTERMEDIATE + inner
    has_second = first_row + 1 < rows
    h_row_2 = h_row + tl.where(has_second, INTERMEDIATE, 0)

    IS_WHOLE: tl.constexpr = INTERMEDIATE % BLOCK_INNER == 0
    inside = inner < INTERMEDIATE
    weight = _weights(weight_tile, inside[None, :], IS_WHOLE)
    wait_for_h(IS_OVERLAPPED)
    total = _products(weight, _token(h_row, inside, IS_WHOLE), BLOCK_ROWS)
    total_2 = total
    if BLOCK_ROWS == 2:
        total_2 = _products(weight, _token(h_row_2, inside, IS_WHOLE), BLOCK_ROWS)
    for start in range(BLOCK_INNER, INTERMEDIATE, BLOCK_INNER):
        inside = inner < INTERMEDIATE - start
        weight = _weights(weight_tile + start, inside[None, :], IS_WHOLE)
        total += _products(weight, _token(h_row + start, inside, IS_WHOLE), BLOCK_ROWS)
        if BLOCK_ROWS == 2:
            total_2 += _products(weight, _token(h_row_2 + start, inside, IS_WHOLE), BLOCK_ROWS)

    out_tile = out_ptr + first_row * HIDDEN + first_column + column
    valid = column < HIDDEN - first_column
    tl.store(out_tile, tl.sum(total, 1).to(out_ptr.dtype.element_ty), mask=valid)
    if BLOCK_ROWS == 2:
        out = tl.sum(total_2, 1).to(out_ptr.dtype.element_ty)
        tl.store(out_tile + HIDDEN, out, mask=valid & has_second)


class GateUpStreamed:
    """The launch for one MLP's weights, one streamed tile and overlap."""

    def __init__(self, weights: MlpWeights, tile: Tile, overlap: Overlap) -> None:
        """Launch nothing yet; see `GateUp`."""
        self._weight = weights.gate_up
        self._tile = tile
        self._variant = Variant(
            swiglu_gate_up_streamed,
            {
                "HIDDEN": weights.shape.hidden,
                "INTERMEDIATE": weights.shape.intermediate,
                "ACTIVATION": weights.activation.value,
                "BLOCK_ROWS": tile.rows,
                "BLOCK_COLUMNS": tile.columns,
                "BLOCK_INNER": tile.inner,
                "STARTS_DOWN": overlap is not Overlap.NONE,
            },
            num_warps=tile.warps,
            num_stages=1,
        )

    def __call__(self, x: torch.Tensor, h: torch.Tensor) -> None:
        """Compute h of x; see `GateUp`."""
        rows, intermediate = h.shape
        self._variant.launch(self._tile.grid(rows, intermediate), x, self._weight, h, rows)


class DownStreamed:
    """The launch for one MLP's weights, one streamed tile and overlap."""

    def __init__(self, weights: MlpWeights, tile: Tile, overlap: Overlap) -> None:
        """Launch nothing yet; see `Down`."""
        self._weight = weights.down
        self._tile = tile
        is_overlapped = overlap is not Overlap.NONE
        self._variant = Variant(
            swiglu_down_streamed,
            {
                "HIDDEN": weights.shape.hidden,
                "INTERMEDIATE": weights.shape.intermediate,
                "BLOCK_ROWS": tile.rows,
                "BLOCK_COLUMNS": tile.columns,
                "BLOCK_INNER": tile.inner,
                "IS_OVERLAPPED": is_overlapped,
            },
            num_warps=tile.warps,
            num_stages=1,
            launch_pdl=is_overlapped,
        )

    def __call__(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """Compute out of h; see `Down`."""
        rows, hidden = out.shape
        self._variant.launch(self._tile.grid(rows, hidden), h, self._weight, out, rows)
