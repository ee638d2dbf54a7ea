"""Whether answers are right: relative errors, row by row, and the bounds they must keep. Pure.

An answer is compared with the exact one by the relative Frobenius error |answer - exact| / |exact|,
once over all rows of a cell and once for each row. The bound on the whole is about precision, and
tight. The bound on a row is three times as wide, because a single row's error scatters around the
whole's, and it is about identity: a row that belongs to another request is off by far more than
that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatefuse.wire import Datatype
from gatefuse_kernels.error_limits import EAGER_ERROR_LIMIT, FUSED_ERROR_LIMIT
from gatefuse_kernels.shapes import DType

# Bounds on the whole, against exact answers in float64 for the same rounded inputs and weights. For
# bfloat16 and float16 the rounding of the output alone costs 1.7e-3 and 2.1e-4. A gate applied in
# float32 with one rounding after it gives 2.35e-3 and 2.9e-4 on large random matrices; every
# operation rounded gives 3.9e-3 and 4.8e-4. float32 is bounded by the order of summation: some 2e-7
# for the sums of a few hundred terms, growing with their square root.
_FUSED = {Datatype[dtype.name]: limit for dtype, limit in FUSED_ERROR_LIMIT.items()}
_UNFUSED = {Datatype[dtype.name]: limit for dtype, limit in EAGER_ERROR_LIMIT.items()}
_FLOAT32_GATES = ("fused", "textbook")
# Two served answers are each off, independently: together by up to the sum of both bounds.
_BETWEEN_MODELS = {datatype: 2 * limit for datatype, limit in _UNFUSED.items()}
# What the bounds of _UNFUSED are for.
MLP_ROUNDINGS = 5
_ROW_FACTOR = 3.0
_MODEL_DTYPES = {dtype.value: Datatype[dtype.name] for dtype in DType}
_COARSENESS = (Datatype.FP32, Datatype.FP16, Datatype.BF16)


@dataclass(frozen=True, slots=True)
class Gate:
    """The largest relative errors that are right: over all rows, and of one row."""

    total: float
    row: float

    @classmethod
    def of(cls, total: float) -> Gate:
        """Returns the gate with that bound on the whole."""
        return cls(total, _ROW_FACTOR * total)


@dataclass(frozen=True, slots=True)
class Errors:
    """What comparing answers gave; two of them can be added."""

    rows: int = 0
    wrong_rows: int = 0
    squared_error: float = 0.0
    squared_norm: float = 0.0
    worst_row: float = 0.0

    def __add__(self, other: Errors) -> Errors:
        """Returns the errors of both sets of answers."""
        return Errors(
            self.rows + other.rows,
            self.wrong_rows + other.wrong_rows,
            self.squared_error + other.squared_error,
            self.squared_norm + other.squared_norm,
            max(self.worst_row, other.worst_row),
        )

    @property
    def relative(self) -> float:
        """The relative Frobenius error over all rows; 0 if there are none."""
        return _ratio(self.squared_error, self.squared_norm)


def gate_for(
    backend: str, dtype: str, datatype: Datatype, *, exact: bool, roundings: int = 0
) -> Gate:
    """Returns the gate for a model's answers.

    Args:
        backend: The model's backend; ``fused`` and ``textbook`` apply the gate in float32.
        dtype: What the model computes in: fp32, fp16 or bf16; an unknown one counts as bf16.
        datatype: What travels. The coarser of the two decides.
        exact: Whether the answers are compared with exact ones or with another model's.
        roundings: How often an element is rounded on its way through an expression, if each of its
            operations is; 0 for an MLP.
    """
    computed = _MODEL_DTYPES.get(dtype, Datatype.BF16)
    coarser = max(computed, datatype, key=_COARSENESS.index)
    if not exact:
        return Gate.of(_BETWEEN_MODELS[coarser])
    if backend in _FLOAT32_GATES:
        return Gate.of(_FUSED[coarser])
    # Independent errors add up by their squares.
    longer = max(1.0, math.sqrt(roundings / MLP_ROUNDINGS))
    return Gate.of(longer * _UNFUSED[coarser])


def compare(
    answer: NDArray[np.floating], expected: NDArray[np.float64], row_gate: float, times: int = 1
) -> Errors:
    """Compares the rows of an answer [M, H] that came ``times`` times with what was expected [M, H]."""
    if not np.isfinite(expected).all():
        answer, expected = _without_equals(answer, expected)
    difference = answer.astype(np.float64) - expected
    squared_errors = np.einsum("mh,mh->m", difference, difference)
    # A row with NaN or infinity where a number belongs is as wrong as can be.
    squared_errors = np.where(np.isfinite(squared_errors), squared_errors, np.inf)
    known = np.where(np.isfinite(expected), expected, 0)
    squared_norms = np.einsum("mh,mh->m", known, known)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.sqrt(squared_errors / squared_norms)
    # An expected row of zeros: only zeros are right.
    relative = np.where(squared_norms > 0, relative, np.where(squared_errors > 0, np.inf, 0.0))
    return Errors(
        rows=times * len(expected),
        wrong_rows=times * int(np.count_nonzero(relative > row_gate)),
        squared_error=times * float(squared_errors.sum()),
        squared_norm=times * float(squared_norms.sum()),
        worst_row=float(relative.max(initial=0.0)),
    )


def _without_equals(
    answer: NDArray[np.floating], expected: NDArray[np.float64]
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Puts zeros into both wherever both have the same infinity, or NaN."""
    same = ~np.isfinite(expected) & ((answer == expected) | (np.isnan(answer) & np.isnan(expected)))
    return np.where(same, 0, answer), np.where(same, 0, expected)


def problems(errors: Errors, gate: Gate) -> list[str]:
    """Returns what is wrong with the answers, in words; empty if they are right."""
    found = []
    if errors.wrong_rows:
        found.append(
            f"{errors.wrong_rows} of {errors.rows} rows are wrong: the worst is off by "
            f"{errors.worst_row:.2g}, at most {gate.row:.2g} is rounding"
        )
    if errors.relative > gate.total:
        found.append(f"the error over all rows is {errors.relative:.2g}, above {gate.total:.2g}")
    return found


def _ratio(squared_error: float, squared_norm: float) -> float:
    if squared_error == 0:
        return 0.0
    return float(np.sqrt(squared_error / squared_norm)) if squared_norm > 0 else float("inf")
