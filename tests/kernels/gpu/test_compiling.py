"""When kernels are compiled: in warm-up, never for a row count; and what the first call gives."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights
from tests.kernels.gpu.forms import CUDA, FORMS, build
from tests.kernels.gpu.right import assert_right
from tests.kernels.gpu.watching import compilations, same_bits

from gatefuse_kernels.shapes import DType

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("form", FORMS)
def test_no_row_count_compiles_anything(form: str) -> None:
    """An argument equal to 1, or a multiple of 16, would be another variant; a request would wait for it."""
    weights = make_weights(264, 696, device=CUDA)
    mlp = build(form, weights, 700)
    mlp.warm_up()
    with compilations() as compiled:
        for rows in (*range(1, 70), 127, 128, 129, 255, 256, 257, 300, 512, 513, 700):
            call(mlp, make_rows(rows, weights))
    assert compiled == []


def test_warming_up_is_seen_to_compile() -> None:
    """The watch itself works."""
    weights = make_weights(272, 704, device=CUDA)
    with compilations() as compiled:
        build("fused", weights, 4).warm_up()
    assert compiled


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 50])
def test_the_first_call_is_right(rows: int, form: str) -> None:
    """triton#4217, #3004: an autotuner ran an accumulating kernel again and again into the first answer."""
    # Widths for this test alone, so that the call compiles.
    weights = make_weights(280, 712 + 8 * rows, device=CUDA)
    x = make_rows(rows, weights)
    mlp = build(form, weights, rows)
    first = call(mlp, x)
    assert_right(form, first, x, weights)
    assert same_bits(call(mlp, x), first)


@pytest.mark.parametrize("form", FORMS)
def test_each_type_has_its_own_kernels(form: str) -> None:
    """triton#2534: a choice made for the first type served the others, which did not fit."""
    for dtype in (DType.BF16, DType.FP32, DType.FP16, DType.BF16):
        weights = make_weights(288, 720, dtype, device=CUDA)
        for rows in (1, 65):
            x = make_rows(rows, weights)
            assert_right(form, call(build(form, weights, rows), x), x, weights)


def test_grad_mode_changes_nothing() -> None:
    weights = make_weights(256, 688, device=CUDA)
    mlp = build("fused", weights, 8)
    mlp.warm_up()
    x = make_rows(8, weights)
    expected = call(mlp, x)
    with compilations() as compiled, torch.inference_mode():
        assert same_bits(call(mlp, x.clone()), expected)
    assert compiled == []
