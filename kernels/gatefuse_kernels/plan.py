"""Pure choice of tiles: (shape, rows, dtype, GPU) -> the two launches of the fused MLP. No torch.

Nothing is tuned at run time, so the same rows always run the same code, on every worker. The
choice depends on rows only through a few classes, so every variant is compiled in warm-up.

Why these tiles (H200, 4096x14336, bf16): up to 16 rows the MLP streams weights, and what counts is
bytes in flight: weight rows take the MMA's M side ("swapped"), 64 x 128 tiles, four stages. From
about 64 rows on, tokens fill the M side themselves. fp32 runs without tensor cores ("ieee"), in
small tiles that stay in registers.
"""

from dataclasses import dataclass

from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape, check_rows

MAX_GRID = 2**31 - 1
"""Programs on grid axis 0; the launcher multiplies the axes in int32."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one GEMM launch is cut.

    Attributes:
        rows: tokens per program.
        columns: output features (weight rows) per program.
        inner: elements of the contracted dimension per pipeline step.
        warps: warps per program.
        stages: depth of the software pipeline.
        swapped: weight rows on the MMA's M side; for few tokens.
        group: row tiles that share a weight tile while it is in L2.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    swapped: bool
    group: int = 8

    def grid(self, rows: int, columns: int) -> int:
        """Programs needed for an output `[rows, columns]`.

        Raises:
            ValueError: more than a launch can have.
        """
        programs = -(-rows // self.rows) * -(-columns // self.columns)
        if programs > MAX_GRID:
            raise ValueError(f"an output of {rows} x {columns} needs {programs} programs")
        return programs


@dataclass(frozen=True, slots=True)
class Plan:
    """The two launches."""

    gate_up: Tile
    down: Tile


_Table = tuple[tuple[int, Plan], ...]
"""Largest row count of a class, and its plan; walked in order."""

_HALF: _Table = (
    (16, Plan(Tile(16, 64, 128, 4, 4, True), Tile(16, 32, 256, 4, 4, True))),
    (32, Plan(Tile(32, 64, 128, 4, 4, True), Tile(32, 32, 128, 4, 5, True))),
    (64, Plan(Tile(64, 64, 128, 4, 4, True), Tile(64, 32, 128, 4, 4, False))),
    (512, Plan(Tile(128, 128, 64, 8, 4, False), Tile(128, 64, 64, 4, 4, False))),
    (MAX_ROWS, Plan(Tile(128, 128, 64, 8, 4, False), Tile(128, 128, 64, 8, 4, False))),
)
# Before Hopper both operands of the MMA pass through registers: smaller tiles, or they spill.
_HALF_BEFORE_HOPPER: _Table = (
    (16, _HALF[0][1]),
    (32, Plan(Tile(32, 64, 64, 4, 4, True), _HALF[1][1].down)),
    (64, Plan(Tile(64, 64, 64, 4, 4, True), _HALF[2][1].down)),
    (MAX_ROWS, Plan(Tile(128, 64, 32, 8, 4, False), Tile(128, 64, 64, 4, 4, False))),
)
_SINGLE: _Table = (
    (16, Plan(Tile(16, 32, 32, 4, 3, True), Tile(16, 32, 32, 4, 3, True))),
    (MAX_ROWS, Plan(Tile(64, 64, 16, 8, 3, False), Tile(64, 64, 16, 8, 3, False))),
)
# Rows that do not start on 16 bytes are loaded element by element, each its own register.
_NARROW = Tile(32, 32, 32, 4, 2, False)

_VECTOR_BYTES = 16


def choose(shape: MlpShape, rows: int, dtype: DType, capability: int = 9) -> Plan:
    """The tiles for `rows` >= 1 rows.

    Args:
        shape: the MLP's widths.
        rows: M.
        dtype: element type.
        capability: the GPU's major compute capability.

    Raises:
        ValueError: `rows` is out of range.
    """
    check_rows(rows, MAX_ROWS)
    plan = next(plan for limit, plan in _table(dtype, capability) if rows <= limit)
    return Plan(
        plan.gate_up if _is_vectorised(shape.hidden, dtype) else _NARROW,
        plan.down if _is_vectorised(shape.intermediate, dtype) else _NARROW,
    )


def row_classes(max_rows: int, dtype: DType, capability: int = 9) -> tuple[int, ...]:
    """The row counts up to `max_rows` that between them meet every plan of 1..max_rows rows."""
    limits = [limit for limit, _ in _table(dtype, capability)]
    below = [limit for limit in limits if limit < max_rows]
    return (*below, min(max_rows, below[-1] + 1 if below else 1))


def shipped(dtype: DType, capability: int = 9) -> tuple[Plan, ...]:
    """Every plan that can be chosen for `dtype`, the one for unaligned widths last."""
    plans = tuple(plan for _, plan in _table(dtype, capability))
    return (*plans, Plan(_NARROW, _NARROW))


def _is_vectorised(width: int, dtype: DType) -> bool:
    """Whether each row of a `[.., width]` matrix starts on a 128-bit boundary."""
    return width * dtype.itemsize % _VECTOR_BYTES == 0


def _table(dtype: DType, capability: int) -> _Table:
    if dtype is DType.FP32:
        return _SINGLE
    return _HALF if capability >= 9 else _HALF_BEFORE_HOPPER
