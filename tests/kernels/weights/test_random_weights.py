"""Random weights: reproducible, of unit size, and refused where they make no sense."""

from __future__ import annotations

import pytest
import torch

from gatefuse_kernels import reference
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.checkpoint import CheckpointError
from gatefuse_kernels.weights.random_weights import random_source

CPU = torch.device("cpu")


def test_random_weights_are_reproducible_and_of_unit_size() -> None:
    source = random_source(256, 512, 3, seed=5)
    assert source.layers == (0, 1, 2)
    weights = source.load(1, DType.FP32, CPU)
    again = random_source(256, 512, 3, seed=5).load(1, DType.FP32, CPU)
    assert torch.equal(weights.gate_up, again.gate_up)
    assert not torch.equal(weights.down, source.load(2, DType.FP32, CPU).down)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    assert 0.8 < float(reference.eager_mlp(x, weights).std()) < 1.2
    assert source.source_id != random_source(256, 512, 3, seed=6).source_id


@pytest.mark.parametrize(("layers", "seed"), [(0, 0), (1, -1)])
def test_random_parameters_are_checked(layers: int, seed: int) -> None:
    with pytest.raises(ValueError, match=r"layers|seed"):
        random_source(8, 8, layers, seed)
    with pytest.raises(CheckpointError, match="no layer 1"):
        random_source(8, 8, 1, 0).load(1, DType.FP32, CPU)
