"""Weights of one MLP as the kernels want them, and where they come from."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.shapes import Activation, DType, MlpShape


@dataclass(frozen=True, eq=False)
class MlpWeights:
    """One gated MLP: gate over up in one tensor, so one product computes both.

    Attributes:
        gate_up: `[2I, H]`, contiguous; rows 0..I are the gate, rows I..2I the up projection.
        down: `[H, I]`, contiguous, same dtype and device.
        activation: applied to the gate.

    Raises:
        ValueError: shapes, dtypes, devices or strides do not fit together.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    activation: Activation

    def __post_init__(self) -> None:
        if self.gate_up.dim() != 2 or self.down.dim() != 2:
            raise ValueError("gate_up and down must be two-dimensional")
        hidden, intermediate = self.down.shape
        if tuple(self.gate_up.shape) != (2 * intermediate, hidden):
            raise ValueError(
                f"gate_up is {tuple(self.gate_up.shape)} but down {tuple(self.down.shape)} needs "
                f"{(2 * intermediate, hidden)}"
            )
        dtypes.from_torch(self.gate_up.dtype)
        if self.gate_up.dtype != self.down.dtype or self.gate_up.device != self.down.device:
            raise ValueError("gate_up and down must share one dtype and one device")
        if not (self.gate_up.is_contiguous() and self.down.is_contiguous()):
            raise ValueError("gate_up and down must be contiguous")
        MlpShape(hidden, intermediate)

    @cached_property
    def shape(self) -> MlpShape:
        """Widths H and I."""
        return MlpShape(self.down.shape[0], self.down.shape[1])

    @property
    def gate(self) -> torch.Tensor:
        """`[I, H]`, a contiguous view."""
        return self.gate_up[: self.down.shape[1]]

    @property
    def up(self) -> torch.Tensor:
        """`[I, H]`, a contiguous view."""
        return self.gate_up[self.down.shape[1] :]

    @property
    def dtype(self) -> DType:
        """Element type of all three matrices."""
        return dtypes.from_torch(self.down.dtype)

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.down.device

    @property
    def nbytes(self) -> int:
        """Bytes of all three matrices."""
        return self.gate_up.nbytes + self.down.nbytes

    @cached_property
    def built(self) -> dict[object, object]:
        """What others built for these weights, by keys of their own; it lives as long as they do."""
        return {}

    @classmethod
    def pack(
        cls,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        activation: Activation = Activation.SILU,
    ) -> "MlpWeights":
        """Pack `[I, H]` gate and up (copied) and `[H, I]` down as `torch.nn.Linear` stores them."""
        return cls(torch.cat((gate, up)), down.contiguous(), activation)


class WeightSource(Protocol):
    """Where the MLPs of one model come from; all layers share one shape and activation."""

    @property
    def shape(self) -> MlpShape:
        """Widths of every layer."""

    @property
    def activation(self) -> Activation:
        """Activation of every layer."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layer numbers that can be loaded, ascending."""

    @property
    def source_id(self) -> str:
        """Equal for equal weights: decides whether two models share one copy."""

    def load(self, layer: int, dtype: DType, device: torch.device) -> MlpWeights:
        """Read one layer and convert it once.

        Raises:
            CheckpointError: the layer does not exist or cannot be read.
        """
