"""The tiles of the textbook kernel, which is there to be compared with and is never chosen for speed.

The largest that spill on no architecture from sm_80 to sm_100: every column that a program owns is
one fewer that needs gate and up again. A single row takes the time of one multiprocessor reading
all of gate and up, whatever the columns.
"""

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.fitting import is_aligned
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape
from gatefuse_kernels.tile import Tile

FEW_ROWS = 16
"""Up to here a program has tiles of 16 rows, the fewest that an MMA takes."""

_FEW_HALF = Tile(16, 128, 64, 4, 3, False)
_MANY_HALF = Tile(64, 128, 64, 8, 3, False)
_FEW_SINGLE = Tile(16, 32, 32, 4, 2, False)
_MANY_SINGLE = Tile(32, 64, 32, 8, 2, False)
# Rows that do not start on 16 bytes are loaded element by element, each its own register.
_UNALIGNED = Tile(16, 32, 32, 4, 2, False)


def textbook_plans(shape: MlpShape, dtype: DType) -> RowPlans:
    """Both tiles by row count, as plans."""
    limits = (FEW_ROWS, MAX_ROWS)
    return RowPlans(
        limits,
        tuple(
            Plan(Algorithm.TEXTBOOK, None, textbook_tile(shape, rows, dtype), "asked for by name")
            for rows in limits
        ),
    )


def textbook_tile(shape: MlpShape, rows: int, dtype: DType) -> Tile:
    """The tile for `rows` >= 1 rows, the same on every device; `inner` is for both contractions."""
    if not is_aligned(shape, dtype):
        return _UNALIGNED
    if dtype is DType.FP32:
        return _FEW_SINGLE if rows <= FEW_ROWS else _MANY_SINGLE
    return _FEW_HALF if rows <= FEW_ROWS else _MANY_HALF
