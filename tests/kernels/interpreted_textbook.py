"""The textbook kernel's arithmetic in Triton's interpreter; `test_interpreter.py` runs this file."""

from __future__ import annotations

import math
import os

import pytest
import torch
from tests.kernels.cases import make_rows, make_weights

from gatefuse_kernels import reference
from gatefuse_kernels.plan import Tile
from gatefuse_kernels.plan.textbook import textbook_tile
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.swiglu.textbook import launch_textbook
from gatefuse_kernels.weights.packed import MlpWeights

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_interpreter.py"

# The interpreter computes with numpy, which warns where a GPU quietly makes an infinity or NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")


def run(x: torch.Tensor, weights: MlpWeights, tile: Tile | None = None) -> torch.Tensor:
    """Into memory filled with NaN, with a NaN row behind it."""
    rows = x.shape[0]
    tile = tile or textbook_tile(weights.shape, rows, weights.dtype)
    out = torch.full((rows + 1, x.shape[1]), math.nan, dtype=x.dtype)
    launch_textbook(x, weights, out[:rows], tile)
    assert out[rows].isnan().all(), "wrote past its rows"
    return out[:rows]


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("shape", [(37, 101), (130, 77), (1, 1), (136, 72)], ids=str)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
def test_odd_sizes(dtype: DType, shape: tuple[int, int], rows: int) -> None:
    weights = make_weights(*shape, dtype)
    x = make_rows(rows, weights)
    accuracy = reference.measure_accuracy(run(x, weights), x, weights)
    if shape == (1, 1):
        # One product per output: no sum to be accurate about, only h's and the output's rounding.
        assert accuracy.error <= 4 * accuracy.limit
    else:
        assert accuracy.is_fused_grade, accuracy


@pytest.mark.parametrize("rows", [16, 33, 49])
@pytest.mark.parametrize("shape", [(48, 64), (50, 70)], ids=str)
def test_every_path_of_a_tile(shape: tuple[int, int], rows: int) -> None:
    """Exact and ragged inner loops, several groups of row tiles."""
    weights = make_weights(*shape, DType.FP32)
    x = make_rows(rows, weights)
    answer = run(x, weights, Tile(16, 32, 16, 4, 2, False, group=2))
    assert reference.measure_accuracy(answer, x, weights).error <= 1e-6


@pytest.mark.parametrize("activation", Activation)
def test_activations(activation: Activation) -> None:
    weights = make_weights(40, 72, DType.FP16, activation)
    x = make_rows(19, weights) * 3
    accuracy = reference.measure_accuracy(run(x, weights), x, weights)
    assert accuracy.is_fused_grade, accuracy


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_row_stays_in_its_row(value: float) -> None:
    weights = make_weights(37, 101, DType.FP32)
    x = make_rows(33, weights)
    clean = run(x, weights)
    x[1, 5] = value
    dirty = run(x, weights)
    assert dirty[1].isnan().any()
    others = [row for row in range(33) if row != 1]
    assert torch.equal(dirty[others], clean[others])


def test_an_infinite_h_past_the_edge_would_be_nan() -> None:
    """fp16 h overflows as in torch; the units that pad the last tile add nothing to the sum."""
    weights = make_weights(24, 41, DType.FP16)
    x = make_rows(4, weights)
    x[2] *= 20000
    answer, eager = run(x, weights), reference.eager_mlp(x, weights)
    assert torch.equal(answer[2].isnan(), eager[2].isnan())
    assert torch.equal(answer[2].isinf(), eager[2].isinf())
    assert answer[[0, 1, 3]].isfinite().all()
