"""Whether an answer is as exact as what computed it can be."""

from __future__ import annotations

import torch
from tests.kernels.gpu.forms import FORCED

from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.error_limits import EAGER_ERROR_LIMIT
from gatefuse_kernels.plan import Algorithm, choose
from gatefuse_kernels.plan.fitting import is_aligned
from gatefuse_kernels.reference import measure_accuracy
from gatefuse_kernels.weights.packed import MlpWeights


def assert_right(
    form: str, answer: torch.Tensor, x: torch.Tensor, weights: MlpWeights, rows: int | None = None
) -> None:
    """Two roundings where our kernels compute gate and up; eager's where the library does.

    Args:
        form: what computed it.
        answer: `[M, H]`, or some of its rows.
        x: the same rows of the input.
        weights: the MLP.
        rows: M, if not all rows are given.
    """
    accuracy = measure_accuracy(answer, x, weights)
    if _algorithm(form, weights, rows or x.shape[0]) is Algorithm.LIBRARY:
        # Gate and up are rounded, too, as in eager; few outputs scatter, eager's as well.
        scatter = 1 + 6 / max(answer.numel(), 1) ** 0.5
        usual = max(accuracy.eager_error, EAGER_ERROR_LIMIT[weights.dtype])
        assert accuracy.error <= usual * scatter, accuracy
    else:
        assert accuracy.is_fused_grade, (form, list(x.shape), accuracy)


def _algorithm(form: str, weights: MlpWeights, rows: int) -> Algorithm:
    if form == "textbook":
        return Algorithm.TEXTBOOK
    if form in FORCED and is_aligned(weights.shape, weights.dtype):
        return FORCED[form].algorithm
    return choose(
        weights.shape,
        rows,
        weights.dtype,
        profile_of(weights.device),
        deterministic=form == "deterministic",
    ).algorithm
