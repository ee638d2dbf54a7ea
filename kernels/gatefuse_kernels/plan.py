"""Pure choice of tiles: (shape, rows, dtype, GPU) -> the two launches of the fused MLP. No torch.

Nothing is tuned at run time, so the same rows always run the same code, on every worker. The
choice depends on rows only through a few classes, so every variant is compiled in warm-up.

Why these tiles: of some 600 variants timed on an H200 (bf16, CUDA-graph replays, weights cold),
they are within 4 % of the fastest and do not spill. Few rows stream weights, and what counts is
bytes in flight: weight rows take the MMA's M side ("swapped") and pipelines are deep.
Microseconds for an MLP, fused / eager:

    rows             1             16            64            128           256
    4096x14336   89.4 / 99.7   91.2 / 100.6  96.5 / 110.2  106.8 / 114.3 159.7 / 147.6
    2048x6144    27.2 / 36.1   27.8 / 36.6   30.9 / 37.5   35.7 / 39.2   46.8 / 45.3

One launch that reads the same weights takes 87.1 and 24.1. At 256 rows no tile reached cuBLAS: 224
tiles of 128 x (128 + 128) are 1.7 waves of 132 multiprocessors, so 15 % of gate_up is idle, and
down takes 52 where cuBLAS takes 48. The pair took 153 in short bursts and 166 in long ones (the
clock, presumably). More rows were not timed. fp32 runs without tensor cores ("ieee"), in small
tiles that stay in registers.
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
    (16, Plan(Tile(16, 64, 128, 4, 5, True), Tile(16, 32, 256, 4, 6, True))),
    (32, Plan(Tile(32, 64, 128, 4, 4, True), Tile(16, 64, 256, 4, 5, True))),
    (64, Plan(Tile(64, 64, 64, 4, 3, True), Tile(32, 64, 128, 4, 6, True))),
    (128, Plan(Tile(128, 128, 64, 8, 4, False), Tile(64, 64, 128, 4, 6, True))),
    (256, Plan(Tile(128, 128, 64, 8, 4, False), Tile(64, 128, 128, 4, 4, False))),
    (MAX_ROWS, Plan(Tile(128, 128, 64, 8, 4, False), Tile(128, 128, 64, 8, 4, False))),
)
# A launch with few columns has fewer programs than multiprocessors: smaller or deeper tiles.
_HALF_NARROW: _Table = (
    (16, Plan(_HALF[0][1].gate_up, Tile(16, 16, 512, 4, 4, True))),
    _HALF[1],
    (64, Plan(Tile(64, 64, 128, 4, 4, True), _HALF[2][1].down)),
    (128, Plan(Tile(128, 64, 64, 8, 5, False), Tile(64, 32, 128, 4, 6, False))),
    (256, Plan(_HALF[4][1].gate_up, Tile(64, 64, 128, 4, 5, True))),
    _HALF[5],
)
# Before Hopper both operands of the MMA pass through registers: smaller tiles, or they spill.
_HALF_BEFORE_HOPPER: _Table = (
    (16, Plan(Tile(16, 64, 128, 4, 4, True), Tile(16, 32, 128, 4, 6, True))),
    (32, Plan(Tile(32, 64, 64, 4, 4, True), Tile(32, 32, 128, 4, 5, True))),
    (64, Plan(Tile(64, 64, 64, 4, 4, True), Tile(64, 32, 128, 4, 4, False))),
    (MAX_ROWS, Plan(Tile(128, 64, 32, 8, 4, False), Tile(128, 64, 64, 4, 4, False))),
)
_SINGLE: _Table = (
    (16, Plan(Tile(16, 32, 32, 4, 3, True), Tile(16, 32, 32, 4, 3, True))),
    (MAX_ROWS, Plan(Tile(64, 64, 16, 8, 3, False), Tile(64, 64, 16, 8, 3, False))),
)
# Rows that do not start on 16 bytes are loaded element by element, each its own register.
_UNALIGNED = Tile(32, 32, 32, 4, 2, False)

_FEW_INTERMEDIATE = 8192
_FEW_HIDDEN = 2048
"""Up to here a launch is narrow: of 132 multiprocessors some would have no program."""

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
    wide, narrow = (_at(table, rows) for table in _tables(dtype, capability))
    gate_up = wide.gate_up if shape.intermediate > _FEW_INTERMEDIATE else narrow.gate_up
    down = wide.down if shape.hidden > _FEW_HIDDEN else narrow.down
    return Plan(
        gate_up if _is_vectorised(shape.hidden, dtype) else _UNALIGNED,
        down if _is_vectorised(shape.intermediate, dtype) else _UNALIGNED,
    )


def row_classes(max_rows: int, dtype: DType, capability: int = 9) -> tuple[int, ...]:
    """The row counts up to `max_rows` that between them meet every plan of 1..max_rows rows."""
    limits = {limit for table in _tables(dtype, capability) for limit, _ in table}
    below = sorted(limit for limit in limits if limit < max_rows)
    return (*below, min(max_rows, below[-1] + 1 if below else 1))


def shipped(dtype: DType, capability: int = 9) -> tuple[Plan, ...]:
    """Every plan that can be chosen for `dtype`, the one for unaligned widths last."""
    plans = [plan for table in _tables(dtype, capability) for _, plan in table]
    return (*dict.fromkeys(plans), Plan(_UNALIGNED, _UNALIGNED))


def _is_vectorised(width: int, dtype: DType) -> bool:
    """Whether each row of a `[.., width]` matrix starts on a 128-bit boundary."""
    return width * dtype.itemsize % _VECTOR_BYTES == 0


def _tables(dtype: DType, capability: int) -> tuple[_Table, _Table]:
    """The tables for launches of many columns and of few."""
    if dtype is DType.FP32:
        return _SINGLE, _SINGLE
    if capability < 9:
        return _HALF_BEFORE_HOPPER, _HALF_BEFORE_HOPPER
    return _HALF, _HALF_NARROW


def _at(table: _Table, rows: int) -> Plan:
    return next(plan for limit, plan in table if rows <= limit)
