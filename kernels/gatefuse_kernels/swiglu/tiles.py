"""Device code both kernels share: which tile a program owns, and the activations in float32."""

import triton.language as tl

from gatefuse_kernels.launch.jit import device


@device
def tile_of_program(
    program: tl.tensor,
    rows: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Row and column tile of a program, as int64 so that products with a width cannot wrap.

    Row tiles of one group run side by side, so that a weight tile is read from DRAM once a group.
    """
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    in_group = GROUP * tl.cdiv(COLUMNS, BLOCK_COLUMNS)
    first = (program // in_group) * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    row_tile = first + (program % in_group) % size
    column_tile = (program % in_group) // size
    return row_tile.to(tl.int64), column_tile.to(tl.int64)


@device
def places(
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    SWAPPED: tl.constexpr,
) -> tl.tensor:
    """Where a tile's elements lie in a matrix of rows of WIDTH, from the tile's first element on."""
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    if SWAPPED:
        return row[None, :] * WIDTH + column[:, None]
    else:
        return row[:, None] * WIDTH + column[None, :]


@device
def existing(
    rows_left: tl.tensor,
    columns_left: tl.tensor,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    SWAPPED: tl.constexpr,
) -> tl.tensor:
    """Which of a tile's elements the matrix has, which ends after so many rows and columns."""
    row = tl.arange(0, BLOCK_ROWS) < rows_left
    column = tl.arange(0, BLOCK_COLUMNS) < columns_left
    if SWAPPED:
        return row[None, :] & column[:, None]
    else:
        return row[:, None] & column[None, :]


@device
def product(weight: tl.tensor, x: tl.tensor, total: tl.tensor, SWAPPED: tl.constexpr) -> tl.tensor:
    """`total` plus the product of a `[columns, inner]` and a `[rows, inner]` tile."""
    if SWAPPED:
        return tl.dot(weight, tl.trans(x), total, input_precision="ieee")
    else:
        return tl.dot(x, tl.trans(weight), total, input_precision="ieee")


@device
def activate(gate: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """The activation of a float32 tile.

    value * sigmoid(y) is value / (1 + 2^(-y log2 e)). An exponent past 128 makes the divisor infinite
    and the answer zero, as it should be, and Triton's division (`div.full`) is right for divisors
    past 2^126, too, where a faster one answers zero.
    """
    if ACTIVATION == "silu":
        return gate / (1.0 + tl.exp2(gate * -1.4426950408889634))
    elif ACTIVATION == "gelu":
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 * (1 + tanh(u)) is sigmoid(2u), which needs no tanh; the factor is -2 sqrt(2 / pi) log2 e.
        inner = gate * (1.0 + 0.044715 * gate * gate)
        return gate / (1.0 + tl.exp2(inner * -2.302208198144325))
    else:
        tl.static_assert(ACTIVATION == "relu")
        # Not a maximum, which would turn NaN into 0.
        return tl.where(gate <= 0.0, 0.0, gate)
