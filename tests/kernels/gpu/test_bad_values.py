"""NaN, infinities and numbers near the ends of a type: what torch gives, in the row where they are."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.cases import act_of_column, call, make_rows, make_weights
from tests.kernels.gpu.forms import CUDA, FORMS, build
from tests.kernels.gpu.watching import same_bits

from gatefuse_kernels import dtypes, reference
from gatefuse_kernels.shapes import Activation, DType

pytestmark = pytest.mark.gpu

BELOW = (-math.inf, -3e38, -1e30, -1e4, -100.0, -88.5, -88.0, -87.5, -20.0, -1.0)
GATES = (*BELOW, 0.0, 1.0, 20.0, 100.0, 1e4, 1e30, 3e38, math.inf, math.nan)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [3, 33, 200])
def test_a_bad_row_stays_in_its_row(rows: int, form: str) -> None:
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, rows)
    x = make_rows(rows, weights)
    clean = call(mlp, x)
    others = [row for row in range(rows) if row != 1]
    for value in (math.nan, math.inf, -math.inf):
        x[1, 5] = value
        dirty = call(mlp, x)
        assert dirty[1].isnan().all()
        assert same_bits(dirty[others], clean[others])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(256, 688), (130, 1000), (24, 41)], ids=str)
def test_fp16_overflow_is_infinite_as_in_torch(shape: tuple[int, int], form: str) -> None:
    """unsloth-zoo#600, llama.cpp#25389: silu(g) * u, or the output, above 65504; and never in other rows."""
    weights = make_weights(*shape, DType.FP16, device=CUDA)
    x = make_rows(4, weights)
    x[2] *= 5000
    answer, eager = call(build(form, weights, 4), x), reference.eager_mlp(x, weights)
    assert not eager[2].isfinite().all()
    assert torch.equal(answer[2].isfinite(), eager[2].isfinite())
    assert answer[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("gate", "up"), [(256.0, 256.0), (256.0, 255.75), (-0.5, 60000.0)])
def test_the_largest_fp16(gate: float, up: float, form: str) -> None:
    """65504 is kept and 65536 is infinite: no saturation, and no overflow on the way."""
    weights = act_of_column(DType.FP16, Activation.SILU, CUDA)
    x = torch.zeros(3, 8, dtype=torch.float16, device=CUDA)
    x[:, 0], x[:, 1] = gate, up
    answer = call(build(form, weights, 3), x)
    torch.testing.assert_close(answer, reference.eager_mlp(x, weights), rtol=2e-3, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DType)
def test_extreme_gates(dtype: DType, activation: Activation, form: str) -> None:
    """ds4#498, ninfer#194: exp overflowed into NaN, or a fast division gave 0, for very negative gates."""
    weights = act_of_column(dtype, activation, CUDA)
    gates = torch.tensor(GATES, device=CUDA).to(dtypes.to_torch(dtype))
    x = torch.zeros(len(GATES), 8, dtype=gates.dtype, device=CUDA)
    # An infinite gate makes NaN of the zeros beside it, with torch as here: the rows stay apart.
    x[:, 0], x[:, 1] = gates, 1
    answer = call(build(form, weights, len(GATES)), x)
    expected = reference.eager_mlp(x, weights)
    unit = {DType.FP32: 2e-5, DType.FP16: 1e-3, DType.BF16: 8e-3}[dtype]
    smallest = torch.finfo(gates.dtype).smallest_normal
    torch.testing.assert_close(answer, expected, rtol=unit, atol=smallest, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_the_two_forms_of_gelu_are_not_mixed_up(form: str) -> None:
    """mistral.rs#1867: erf for tanh is wrong text. They differ most, by 4.7e-4, near 2.70."""
    answers = {}
    for activation in (Activation.GELU, Activation.GELU_TANH):
        weights = act_of_column(DType.FP32, activation, CUDA)
        x = torch.zeros(2, 8, device=CUDA)
        x[:, 0], x[:, 1] = 2.70, 1
        answers[activation] = call(build(form, weights, 2), x)
        expected = reference.activate(x[:, :1], activation).expand(2, 8)
        torch.testing.assert_close(answers[activation], expected, rtol=1e-6, atol=0)
    apart = (answers[Activation.GELU] - answers[Activation.GELU_TANH]).abs()
    assert apart.min() > 4e-4


@pytest.mark.parametrize("form", FORMS)
def test_relu_keeps_nan(form: str) -> None:
    """A maximum drops NaN: what torch shows as broken would have looked right."""
    weights = act_of_column(DType.BF16, Activation.RELU, CUDA)
    x = torch.ones(2, 8, dtype=torch.bfloat16, device=CUDA)
    x[1, 0] = math.nan
    answer = call(build(form, weights, 2), x)
    assert answer[0].eq(1).all()
    assert answer[1].isnan().all()
