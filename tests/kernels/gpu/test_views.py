"""Tensors that start or lie unusually: right where they are taken, refused by name where not."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA, FORMS, MAIN, build
from tests.kernels.gpu.right import assert_right
from tests.kernels.gpu.watching import compilations, same_bits

from gatefuse_kernels import gated
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.packed import MlpWeights

pytestmark = pytest.mark.gpu


def view_at(offset: int, like: torch.Tensor) -> torch.Tensor:
    """A NaN-filled contiguous view of like's shape, `offset` elements into an allocation."""
    storage = torch.full(
        (like.numel() + offset + 8,), math.nan, dtype=like.dtype, device=like.device
    )
    return storage[offset : offset + like.numel()].view(like.shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [1, 3, 4, 8])
def test_any_start(offset: int, form: str) -> None:
    """FlagGems#4471, triton#9439: 2, 6 and 8 bytes are no start for a 16-byte load, and 16 none for a tensor map."""
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, 40)
    mlp.warm_up()
    for rows in (1, 5, 40):
        rows_at_a_start = make_rows(rows, weights)
        expected = call(mlp, rows_at_a_start)
        x, out = view_at(offset, rows_at_a_start), view_at(offset, rows_at_a_start)
        x.copy_(rows_at_a_start)
        with compilations() as compiled:
            mlp(x, out)
        assert compiled == []
        assert same_bits(out, expected)
        storage = out.untyped_storage().nbytes() // 2
        around = torch.as_strided(out, (storage,), (1,), 0).clone()
        around[offset : offset + out.numel()] = math.nan
        assert around.isnan().all(), "wrote outside the view"


@pytest.mark.parametrize("form", MAIN)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", [(3420, 3420), (3416, 684), (684, 3422), (1001, 2047)], ids=str)
def test_widths_that_are_no_multiple_of_16_bytes(
    shape: tuple[int, int], dtype: DType, form: str
) -> None:
    """flashinfer#5013: misaligned at d = 3420, for 2d was checked and not d; triton#10931: strides off 16 bytes."""
    weights = make_weights(*shape, dtype, device=CUDA)
    for rows in (1, 7, 70):
        x = make_rows(rows, weights)
        assert_right(form, call(build(form, weights, rows), x), x, weights)


@pytest.mark.parametrize("form", FORMS)
def test_one_row_of_a_larger_matrix(form: str) -> None:
    """triton#10927: with one row, a stride is whatever the caller's tensor says; torch calls it contiguous."""
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, 1)
    wide = noise(9, 2 * 256 + 8, dtype=torch.bfloat16, device=CUDA)
    for x in (wide[5:6, 8:264], wide[5:6, 1:257], wide[8:9, 264:]):
        x = x[:, :256]
        assert x.is_contiguous()
        assert same_bits(call(mlp, x), call(mlp, x.clone()))


@pytest.mark.parametrize("form", MAIN)
def test_what_is_not_contiguous_is_refused(form: str) -> None:
    weights = make_weights(256, 256, device=CUDA)
    mlp = build(form, weights, 256)
    good = make_rows(256, weights)
    wide = noise(256, 512, dtype=torch.bfloat16, device=CUDA)
    for x, out in ((good.t(), good), (good, good.t()), (wide[:, :256], good), (good, wide[:, ::2])):
        with pytest.raises(ValueError, match="must be contiguous"):
            mlp(x, out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(256, 688), (512, 1024)], ids=str)
def test_weights_that_start_anywhere_are_right(shape: tuple[int, int], form: str) -> None:
    """A slice of a flat checkpoint buffer: no start for 16-byte loads, nor for a tensor map."""
    aligned = make_weights(*shape, device=CUDA)
    gate_up, down = view_at(1, aligned.gate_up), view_at(3, aligned.down)
    gate_up.copy_(aligned.gate_up)
    down.copy_(aligned.down)
    shifted = MlpWeights(gate_up, down, aligned.activation)
    for rows in (1, 40):
        x = make_rows(rows, aligned)
        assert_right(form, call(build(form, shifted, rows), x), x, aligned)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("width", [3420, 1, 8, 101, 684, 2047, 4099])
def test_halves_of_a_merged_matrix(width: int, dtype: DType) -> None:
    """flashinfer#5013 for the gate alone: the second half starts where the width says."""
    kind = {DType.FP32: torch.float32, DType.FP16: torch.float16, DType.BF16: torch.bfloat16}[dtype]
    gate, up = noise(33, 2 * width, dtype=kind, device=CUDA).chunk(2, dim=1)
    assert same_bits(gated(gate, up), gated(gate.contiguous(), up.contiguous()))


@pytest.mark.parametrize("offsets", [(0, 1, 2), (1, 1, 1), (4, 0, 0), (3, 4, 8)])
def test_the_gate_starts_anywhere(offsets: tuple[int, int, int]) -> None:
    like = noise(7, 333, dtype=torch.bfloat16, device=CUDA)
    gate, up, out = (view_at(offset, like) for offset in offsets)
    gate.copy_(like)
    up.copy_(like.flip(0))
    gated(gate, up, out=out)
    assert same_bits(out, gated(like, like.flip(0)))
    storage = torch.as_strided(out, (out.untyped_storage().nbytes() // 2,), (1,), 0).clone()
    storage[offsets[2] : offsets[2] + out.numel()] = math.nan
    assert storage.isnan().all(), "wrote outside the view"


def test_the_gate_of_views_allocates_nothing_but_its_answer() -> None:
    """Liger-Kernel#1326: halves of a merged matrix are not contiguous, and both were copied first."""
    rows, width = 512, 4096
    gate, up = noise(rows, 2 * width, dtype=torch.bfloat16, device=CUDA).chunk(2, dim=1)
    gated(gate, up)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = gated(gate, up)
    assert torch.cuda.max_memory_allocated() - before == out.nbytes
