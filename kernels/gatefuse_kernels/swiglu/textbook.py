"""The tutorial's kernel: gate, up, activation and down in one launch, at its true cost.

Each program owns a tile of the output and needs all of h for its rows, so the R programs that share
those rows compute gate and up R times over, R being H over the tile's columns: (2R + 1) / 3 of the
FLOPs, 21.7 times at H = 4096 with 128 columns. It is here to be compared with, and mends what the
tutorial leaves open: h is rounded to the weights' type before the second product (which needs both
operands in one), edges are masked, and float32 is not quietly tf32.
"""

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import kernel
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.swiglu.tiles import activate, tile_of_program
from gatefuse_kernels.weights.packed import MlpWeights


@kernel
def swiglu_textbook(
    x_ptr: tl.tensor,
    gate_up_ptr: tl.tensor,
    down_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """X [rows, HIDDEN], gate_up [2 * INTERMEDIATE, HIDDEN], down [HIDDEN, INTERMEDIATE] -> out [rows, HIDDEN].

    `BLOCK_INNER` is the step along both contracted widths. Tile origins are 64-bit scalars; offsets
    inside a tile fit 32 bits. Whatever lies past an edge is read as zero, and h past the edge is set
    to zero, for 0 times an infinite h would be NaN.
    """
    row_tile, column_tile = tile_of_program(
        tl.program_id(0), rows, HIDDEN, BLOCK_ROWS, BLOCK_COLUMNS, GROUP
    )
    first_row = row_tile * BLOCK_ROWS
    first_column = column_tile * BLOCK_COLUMNS
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    is_token = (row < (rows - first_row).to(tl.int32))[:, None]
    is_column = column < (HIDDEN - first_column).to(tl.int32)

    x_tile = x_ptr + first_row * HIDDEN
    x_offset = row[:, None] * HIDDEN + inner[None, :]
    weight_offset = inner[:, None] * HIDDEN + inner[None, :]
    down_tile = down_ptr + first_column * INTERMEDIATE
    down_offset = column[:, None] * INTERMEDIATE + inner[None, :]

    gate_tile = gate_up_ptr
    up_tile = gate_up_ptr + INTERMEDIATE * HIDDEN
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    for first_unit in range(0, INTERMEDIATE, BLOCK_INNER):
        is_unit = inner < INTERMEDIATE - first_unit
        gate = tl.zeros((BLOCK_ROWS, BLOCK_INNER), tl.float32)
        up = tl.zeros((BLOCK_ROWS, BLOCK_INNER), tl.float32)
        for start in range(0, HIDDEN, BLOCK_INNER):
            inside = (inner < HIDDEN - start)[None, :]
            x = tl.load(x_tile + start + x_offset, mask=is_token & inside, other=0.0)
            valid = is_unit[:, None] & inside
            weight = tl.load(gate_tile + start + weight_offset, mask=valid, other=0.0)
            gate = tl.dot(x, tl.trans(weight), gate, input_precision="ieee")
            weight = tl.load(up_tile + start + weight_offset, mask=valid, other=0.0)
            up = tl.dot(x, tl.trans(weight), up, input_precision="ieee")
        h = tl.where(is_unit[None, :], activate(gate, ACTIVATION) * up, 0.0)
        down = tl.load(
            down_tile + first_unit + down_offset,
            mask=is_column[:, None] & is_unit[None, :],
            other=0.0,
        )
        h = h.to(down_ptr.dtype.element_ty)
        total = tl.dot(h, tl.trans(down), total, input_precision="ieee")
        gate_tile += BLOCK_INNER * HIDDEN
        up_tile += BLOCK_INNER * HIDDEN

    out_tile = out_ptr + first_row * HIDDEN + first_column
    out_offset = row[:, None] * HIDDEN + column[None, :]
    out = total.to(out_ptr.dtype.element_ty)
    tl.store(out_tile + out_offset, out, mask=is_token & is_column[None, :])


def launch_textbook(x: torch.Tensor, weights: MlpWeights, out: torch.Tensor, tile: Tile) -> None:
    """Launch on the current stream and device.

    Args:
        x: `[M, H]`, contiguous, M >= 1.
        weights: of x's dtype.
        out: `[M, H]`, contiguous, fully overwritten.
        tile: rows and columns of the output that a program owns; `inner` is the step along both
            contracted widths. Never swapped, split or through descriptors.
    """
    rows, hidden = out.shape
    swiglu_textbook[(tile.grid(rows, hidden),)](
        x,
        weights.gate_up,
        weights.down,
        out,
        rows,
        HIDDEN=hidden,
        INTERMEDIATE=weights.down.shape[1],
        ACTIVATION=weights.activation.value,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_INNER=tile.inner,
        GROUP=tile.group,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
