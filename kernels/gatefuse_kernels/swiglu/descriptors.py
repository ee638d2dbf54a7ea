"""TMA descriptors of matrices: the copy engine fetches whole tiles, and zeroes what lies outside."""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from gatefuse_kernels.packed import MlpWeights


def describe(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor that copies `[rows, columns]` tiles of a contiguous matrix.

    The matrix starts on 16 bytes, its rows are multiples of 16 bytes, and it is not empty.
    """
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


class WeightDescriptors:
    """The descriptors of one MLP's weights, made once for each tile."""

    def __init__(self, weights: MlpWeights) -> None:
        """Describe nothing yet."""
        self._weights = weights
        self._held: dict[tuple[str, int, int], TensorDescriptor] = {}

    def gate_up(self, rows: int, columns: int) -> TensorDescriptor:
        """Tiles of `[2I, H]`."""
        return self._get("gate_up", self._weights.gate_up, rows, columns)

    def down(self, rows: int, columns: int) -> TensorDescriptor:
        """Tiles of `[H, I]`."""
        return self._get("down", self._weights.down, rows, columns)

    def _get(self, name: str, matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
        key = (name, rows, columns)
        if key not in self._held:
            self._held[key] = describe(matrix, rows, columns)
        return self._held[key]
