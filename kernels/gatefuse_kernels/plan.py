"""Pure choice of tiles: (shape, rows, dtype) -> the two launches of the fused MLP. No torch.

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


_HALF: tuple[tuple[int, Plan], ...] = (
    (16, Plan(Tile(16, 64, 128, 4, 4, True), Tile(16, 32, 256, 4, 4, True))),
    (32, Plan(Tile(32, 64, 128, 4, 4, True), Tile(32, 32, 128, 4, 5, True))),
    (64, Plan(Tile(64, 64, 128, 4, 4, True), Tile(64, 32, 128, 4, 4, False))),
    (512, Plan(Tile(128, 128, 64, 8, 4, False), Tile(128, 64, 64, 4, 4, False))),
    (MAX_ROWS, Plan(Tile(128, 128, 64, 8, 4, False), Tile(128, 128, 64, 8, 4, False))),
)
_SINGLE: tuple[tuple[int, Plan], ...] = (
    (16, Plan(Tile(16, 32, 32, 4, 3, True), Tile(16, 32, 32, 4, 3, True))),
    (MAX_ROWS, Plan(Tile(64, 32, 32, 4, 3, False), Tile(64, 32, 32, 4, 3, False))),
)


def choose(shape: MlpShape, rows: int, dtype: DType) -> Plan:
    """The tiles for `rows` >= 1 rows.

    Raises:
        ValueError: `rows` is out of range.
    """
    check_rows(rows, MAX_ROWS)
    return next(plan for limit, plan in _table(dtype) if rows <= limit)


def row_classes(max_rows: int, dtype: DType) -> tuple[int, ...]:
    """One row count for each distinct plan that 1..max_rows rows can meet."""
    limits = [limit for limit, _ in _table(dtype)]
    below = [limit for limit in limits if limit < max_rows]
    return (*below, max_rows)


def shipped(dtype: DType) -> tuple[Plan, ...]:
    """Every plan that can be chosen for `dtype`."""
    return tuple(plan for _, plan in _table(dtype))


def _table(dtype: DType) -> tuple[tuple[int, Plan], ...]:
    return _SINGLE if dtype is DType.FP32 else _HALF
