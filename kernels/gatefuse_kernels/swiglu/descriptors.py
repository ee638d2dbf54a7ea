"""TMA descriptors of matrices: the copy engine fetches whole tiles, and zeroes what lies outside."""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor


def describe(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor that copies `[rows, columns]` tiles of a contiguous matrix.

    The matrix starts on 16 bytes, its rows are multiples of 16 bytes, and it is not empty.
    """
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])
