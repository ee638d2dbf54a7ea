"""Device code both kernels share: which tile a program owns, and the activations in float32."""

import triton.language as tl

from gatefuse_kernels.swiglu.jit import device


@device
def tile_of_program(
    rows: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Row and column tile of this program, as int64 so that products with a width cannot wrap.

    Row tiles of one group run side by side, so that a weight tile is read from DRAM once a group.
    """
    program = tl.program_id(0)
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    in_group = GROUP * tl.cdiv(COLUMNS, BLOCK_COLUMNS)
    first = (program // in_group) * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    row_tile = first + (program % in_group) % size
    column_tile = (program % in_group) // size
    return row_tile.to(tl.int64), column_tile.to(tl.int64)


@device
def product(weight: tl.tensor, x: tl.tensor, total: tl.tensor, SWAPPED: tl.constexpr) -> tl.tensor:
    """`total` plus the product of a `[columns, inner]` and a `[rows, inner]` tile."""
    if SWAPPED:
        return tl.dot(weight, tl.trans(x), total, input_precision="ieee")
    else:
        return tl.dot(x, tl.trans(weight), total, input_precision="ieee")


@device
def sigmoid(value: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-value)) with a divisor in 1..2: no overflow, no fast-division flush."""
    small = tl.exp(-tl.abs(value))
    return tl.where(value >= 0, 1.0, small) / (1.0 + small)


@device
def activate(gate: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """The activation of a float32 tile."""
    if ACTIVATION == "silu":
        return gate * sigmoid(gate)
    elif ACTIVATION == "gelu":
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # 0.5 * (1 + tanh(u)) is sigmoid(2u), which needs no tanh and cannot overflow.
        inner = gate * (1.0 + 0.044715 * gate * gate)
        return gate * sigmoid(1.5957691216057308 * inner)
