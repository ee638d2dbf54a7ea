"""Weights and rows for kernel tests: the same in every run, made on the device that uses them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.weights.packed import MlpWeights


def noise(
    *shape: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> torch.Tensor:
    """Normal numbers of unit size."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device, dtype=dtype)


def make_weights(
    hidden: int,
    intermediate: int,
    dtype: DType = DType.BF16,
    activation: Activation = Activation.SILU,
    device: str | torch.device = "cpu",
) -> MlpWeights:
    """Random weights that give answers of about unit size."""
    kind = dtypes.to_torch(dtype)
    gate_up = noise(2 * intermediate, hidden, seed=1, device=device) / math.sqrt(hidden)
    down = noise(hidden, intermediate, seed=2, device=device) / math.sqrt(0.4 * intermediate)
    return MlpWeights(gate_up.to(kind), down.to(kind), activation)


def make_rows(rows: int, weights: MlpWeights) -> torch.Tensor:
    """Unit-sized rows `[rows, H]` of the weights' dtype, on their device."""
    kind = weights.down.dtype
    return noise(rows, weights.shape.hidden, seed=rows, dtype=kind, device=weights.device)


def call(mlp: Callable[[torch.Tensor, torch.Tensor], object], x: torch.Tensor) -> torch.Tensor:
    """The answer, written into NaN: an output that a kernel forgets shows."""
    out = torch.full_like(x, math.nan)
    mlp(x, out)
    return out


def act_of_column(dtype: DType, activation: Activation, device: str | torch.device) -> MlpWeights:
    """An MLP of widths 8 and 8 whose every output is act(x[0]) * x[1], with nothing else in the sums."""
    kind = dtypes.to_torch(dtype)
    gate_up = torch.zeros(16, 8, dtype=kind, device=device)
    gate_up[0, 0] = 1
    gate_up[8, 1] = 1
    down = torch.zeros(8, 8, dtype=kind, device=device)
    down[:, 0] = 1
    return MlpWeights(gate_up, down, activation)
