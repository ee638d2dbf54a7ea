"""The closed mapping between `DType` and torch's element types."""

import torch

from gatefuse_kernels.shapes import DType

_TORCH: dict[DType, torch.dtype] = {
    DType.FP32: torch.float32,
    DType.FP16: torch.float16,
    DType.BF16: torch.bfloat16,
}
_GATEFUSE = {torch_type: dtype for dtype, torch_type in _TORCH.items()}


def to_torch(dtype: DType) -> torch.dtype:
    """The torch dtype of `dtype`."""
    return _TORCH[dtype]


def from_torch(dtype: torch.dtype) -> DType:
    """The `DType` of a torch dtype.

    Raises:
        ValueError: the type is not one of fp32, fp16, bf16.
    """
    try:
        return _GATEFUSE[dtype]
    except KeyError:
        supported = ", ".join(_TORCH)
        raise ValueError(f"element type {dtype} is not supported; use one of {supported}") from None
