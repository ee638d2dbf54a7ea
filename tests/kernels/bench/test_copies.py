"""Copies of the weights: how many, and where their parts lie."""

from __future__ import annotations

import pytest
import torch

from gatefuse_kernels.bench.copies import copies_for, make_copy
from gatefuse_kernels.shapes import DType, MlpShape

MIB = 1 << 20


@pytest.mark.parametrize(
    ("weight_bytes", "copies"), [(1400 * MIB, 3), (80 * MIB, 3), (72 * MIB, 4), (MIB, 240)]
)
def test_together_they_are_larger_than_l2(weight_bytes: int, copies: int) -> None:
    assert copies_for(weight_bytes, 60 * MIB) == copies


@pytest.mark.parametrize("shape", [MlpShape(37, 101), MlpShape(256, 688)], ids=str)
@pytest.mark.parametrize("dtype", DType)
def test_the_memory_is_the_weights(dtype: DType, shape: MlpShape) -> None:
    copy = make_copy(shape, dtype, torch.device("cpu"))
    assert copy.weights.shape == shape
    assert copy.weights.dtype is dtype
    copy.memory.fill_(1)
    assert copy.weights.gate_up.eq(1).all()
    assert copy.weights.down.eq(1).all()
    gap = copy.memory.numel() - shape.weight_elements
    assert 0 <= gap < 128
    offset = copy.weights.down.data_ptr() - copy.memory.data_ptr()
    assert offset % 128 == 0
