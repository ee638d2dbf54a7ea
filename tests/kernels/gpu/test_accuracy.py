"""Right answers: at full size, at odd sizes, row by row, with memory that holds NaN before."""

from __future__ import annotations

import pytest
from tests.kernels.cases import call, make_rows, make_weights
from tests.kernels.gpu.forms import CUDA, FORMS, MAIN, build
from tests.kernels.gpu.right import assert_right

import gatefuse_kernels
from gatefuse_kernels import reference
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.weights.packed import MlpWeights

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_memory")]

ROWS = (1, 3, 17, 33, 65, 130, 600)


@pytest.fixture(scope="module", params=list(DType))
def llama(request: pytest.FixtureRequest) -> MlpWeights:
    return make_weights(4096, 14336, request.param, device=CUDA)


@pytest.mark.parametrize("rows", [1, 2, 16, 32, 64, 128, 256, 512, 1000, 2048])
def test_full_size(llama: MlpWeights, rows: int) -> None:
    """Liger-Kernel#1435: fp32 tiles did not fit shared memory, and nearly half of a result was wrong."""
    x = make_rows(rows, llama)
    assert_right("fused", call(build("fused", llama, rows), x), x, llama)


@pytest.mark.parametrize("form", MAIN)
@pytest.mark.parametrize("shape", [(37, 101), (130, 1000), (1000, 2071)], ids=str)
@pytest.mark.parametrize("dtype", DType)
def test_odd_widths(dtype: DType, shape: tuple[int, int], form: str) -> None:
    weights = make_weights(*shape, dtype, device=CUDA)
    mlp = build(form, weights, ROWS[-1])
    for rows in ROWS:
        x = make_rows(rows, weights)
        assert_right(form, call(mlp, x), x, weights)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1000, 2072), (256, 688), (8, 8)], ids=str)
@pytest.mark.parametrize("dtype", DType)
def test_tails_of_every_tile(dtype: DType, shape: tuple[int, int], form: str) -> None:
    """Widths whose rows start on 16 bytes, and that are no multiple of a tile."""
    weights = make_weights(*shape, dtype, device=CUDA)
    mlp = build(form, weights, ROWS[-1])
    for rows in ROWS:
        x = make_rows(rows, weights)
        assert_right(form, call(mlp, x), x, weights)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", Activation)
def test_activations(activation: Activation, form: str) -> None:
    weights = make_weights(256, 688, DType.FP16, activation, CUDA)
    mlp = build(form, weights, 65)
    for rows in (1, 17, 65):
        x = make_rows(rows, weights) * 3
        assert_right(form, call(mlp, x), x, weights)


@pytest.mark.parametrize("form", FORMS)
def test_every_row_has_its_own_answer(form: str) -> None:
    """Triton-distributed#180: all rows landed in row 0, and a check of their sum did not notice."""
    weights = make_weights(256, 688, device=CUDA)
    x = make_rows(300, weights)
    answer = call(build(form, weights, 300), x).double()
    truth = reference.mlp_reference(x, weights)
    error = (answer - truth).norm(dim=1) / truth.norm(dim=1)
    assert error.max() < 3 * 4.2e-3


@pytest.mark.parametrize("form", FORMS)
def test_float32_is_not_tf32(form: str) -> None:
    """triton#8654: fp32 products were off by 1e-3, because tl.dot takes tf32 unless told otherwise."""
    weights = make_weights(256, 688, DType.FP32, device=CUDA)
    for rows in (1, 64, 300):
        x = make_rows(rows, weights)
        truth = reference.mlp_reference(x, weights)
        assert reference.relative_error(call(build(form, weights, rows), x), truth) < 1e-6


def test_standalone_with_leading_dimensions() -> None:
    weights = make_weights(256, 688, device=CUDA)
    x = make_rows(6, weights)
    answer = gatefuse_kernels.swiglu_mlp(x.view(2, 3, 256), weights)
    assert_right("fused", answer.view(6, 256), x, weights)
