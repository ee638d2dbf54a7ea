"""Random weights for load tests without a checkpoint."""

import math
from dataclasses import dataclass

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.weights.checkpoint import CheckpointError
from gatefuse_kernels.weights.packed import MlpWeights

_GATED_SECOND_MOMENT = {
    Activation.SILU: 0.3558,
    Activation.GELU: 0.4252,
    Activation.GELU_TANH: 0.4252,
    Activation.RELU: 0.5,
}
"""E[act(g)^2] for g ~ N(0, 1): with unit u it is the mean square of h."""

_CHUNK_ELEMENTS = 1 << 24
"""Generated at a time in float32, so a large layer needs little memory beside itself."""


@dataclass(frozen=True)
class RandomSource:
    """Normal weights scaled so that inputs of unit size give outputs of unit size."""

    shape: MlpShape
    layers: tuple[int, ...]
    seed: int
    activation: Activation = Activation.SILU

    @property
    def source_id(self) -> str:
        """The parameters: equal parameters give equal weights."""
        return f"random:{self.shape}:{self.activation}:seed={self.seed}"

    def load(self, layer: int, dtype: DType, device: torch.device) -> MlpWeights:
        """Generate one layer. The same layer has the same values on every device.

        Raises:
            CheckpointError: no such layer.
        """
        if layer not in self.layers:
            raise CheckpointError(f"{self.source_id} has no layer {layer}")
        hidden, intermediate = self.shape.hidden, self.shape.intermediate
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + layer)
        kind = dtypes.to_torch(dtype)
        gate_up = torch.empty(2 * intermediate, hidden, dtype=kind, device=device)
        down = torch.empty(hidden, intermediate, dtype=kind, device=device)
        _fill_normal(gate_up, 1 / math.sqrt(hidden), generator)
        h_square = _GATED_SECOND_MOMENT[self.activation] * intermediate
        _fill_normal(down, 1 / math.sqrt(h_square), generator)
        return MlpWeights(gate_up, down, self.activation)


def random_source(hidden: int, intermediate: int, layers: int, seed: int) -> RandomSource:
    """Layers 0..layers of random weights, silu-gated.

    Raises:
        ValueError: a width or the number of layers is out of range, or the seed is negative.
    """
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return RandomSource(MlpShape(hidden, intermediate), tuple(range(layers)), seed)


def _fill_normal(target: torch.Tensor, scale: float, generator: torch.Generator) -> None:
    rows_at_once = max(1, _CHUNK_ELEMENTS // target.shape[1])
    for start in range(0, target.shape[0], rows_at_once):
        part = target[start : start + rows_at_once]
        part.copy_(torch.randn(part.shape, generator=generator).mul_(scale))
