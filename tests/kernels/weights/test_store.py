"""One copy of a layer's weights, however many ask, for as long as somebody has it."""

from __future__ import annotations

import torch

from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.random_weights import random_source
from gatefuse_kernels.weights.store import WeightStore

CPU = torch.device("cpu")


def test_the_store_keeps_one_copy() -> None:
    store = WeightStore(CPU)
    first = store.get(random_source(8, 16, 2, 0), 1, DType.BF16)
    assert store.get(random_source(8, 16, 2, 0), 1, DType.BF16) is first
    assert store.nbytes == first.nbytes
    wide = store.get(random_source(8, 16, 2, 0), 1, DType.FP32)
    other = store.get(random_source(8, 16, 2, 1), 1, DType.BF16)
    assert store.nbytes == first.nbytes * 4
    # What nobody has any more is let go.
    del wide
    assert store.nbytes == first.nbytes + other.nbytes
