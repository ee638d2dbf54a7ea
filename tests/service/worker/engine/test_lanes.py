"""Where the GPU's engine finds a batch's tensors; no GPU is needed to count bytes."""

from __future__ import annotations

import pytest
import torch

from gatefuse.link.arena import tensor_stride, tensors_bytes
from gatefuse.worker.engine.lanes import tensors_in


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 64), (2, 129)], ids=str)
def test_tensors_lie_in_a_lane_as_they_lie_in_a_slot(
    dtype: torch.dtype, count: int, shape: tuple[int, int]
) -> None:
    rows, row_bytes = shape[0], shape[1] * dtype.itemsize
    # As large as a region must be, and not a byte larger.
    buffer = torch.zeros(tensors_bytes(count, rows, row_bytes), dtype=torch.uint8)
    tensors = tensors_in(buffer, count, shape, dtype)
    assert [tensor.shape for tensor in tensors] == [torch.Size(shape)] * count
    for number, tensor in enumerate(tensors):
        assert tensor.is_contiguous()
        start = tensor.data_ptr() - buffer.data_ptr()
        assert start == number * tensor_stride(rows, row_bytes)
        assert start % 256 == 0
