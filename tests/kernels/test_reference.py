"""The accuracy gate itself: what it must let through, and what it must not."""

from __future__ import annotations

import pytest
import torch

from gatefuse_kernels import dtypes, reference
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.weights.random_weights import random_source

HALF = (DType.BF16, DType.FP16)


def make_case(
    hidden: int, intermediate: int, rows: int, dtype: DType, seed: int
) -> tuple[torch.Tensor, MlpWeights]:
    weights = random_source(hidden, intermediate, 1, seed).load(0, dtype, torch.device("cpu"))
    x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(seed))
    return x.to(dtypes.to_torch(dtype)), weights


def rounded_twice(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """What the kernels do: float32 sums, h and the output rounded once each."""
    gate, up = x.float() @ weights.gate.float().t(), x.float() @ weights.up.float().t()
    h = (reference.activate(gate, weights.activation) * up).to(x.dtype)
    return (h.float() @ weights.down.float().t()).to(x.dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("rows", "draws"), [(1, 100), (3, 100), (17, 30)])
def test_few_outputs_pass_whatever_the_draw(rows: int, draws: int, dtype: DType) -> None:
    for seed in range(draws):
        x, weights = make_case(37, 101, rows, dtype, seed)
        accuracy = reference.measure_accuracy(rounded_twice(x, weights), x, weights)
        assert accuracy.is_fused_grade, (seed, accuracy)


@pytest.mark.parametrize("dtype", HALF)
def test_eager_roundings_do_not_pass(dtype: DType) -> None:
    x, weights = make_case(130, 1000, 17, dtype, 0)
    accuracy = reference.measure_accuracy(reference.eager_mlp(x, weights), x, weights)
    assert not accuracy.is_fused_grade, accuracy


@pytest.mark.parametrize("dtype", DType)
def test_one_wrong_output_does_not_pass(dtype: DType) -> None:
    x, weights = make_case(130, 1000, 17, dtype, 0)
    answer = rounded_twice(x, weights)
    assert reference.measure_accuracy(answer, x, weights).is_fused_grade
    answer[3, 7] = 0
    assert not reference.measure_accuracy(answer, x, weights).is_fused_grade


def test_no_outputs() -> None:
    x, weights = make_case(37, 101, 0, DType.BF16, 0)
    assert reference.measure_accuracy(torch.empty_like(x), x, weights).is_fused_grade
