"""Equal weights in different memory, so that no replay finds in L2 what the last one left there."""

import math
from dataclasses import dataclass

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.weights.packed import MlpWeights

_TIMES_L2 = 4
_LEAST_COPIES = 3
_ALIGNED_ELEMENTS = 128
"""Where the down projection may begin: whole 128-byte lines in every dtype."""


@dataclass(frozen=True, eq=False)
class Copy:
    """One copy of the weights.

    Attributes:
        memory: one-dimensional; everything a pass over the weights reads.
        weights: views into it, gate and up first.
    """

    memory: torch.Tensor
    weights: MlpWeights


def copies_for(weight_bytes: int, l2_bytes: int) -> int:
    """How many copies together are several times larger than L2."""
    return max(_LEAST_COPIES, -(-_TIMES_L2 * l2_bytes // weight_bytes))


def weight_copies(shape: MlpShape, dtype: DType, device: torch.device) -> list[Copy]:
    """As many as `copies_for` wants, of normal values that keep unit rows near unit size."""
    l2_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
    count = copies_for(shape.weight_elements * dtype.itemsize, l2_bytes)
    first = make_copy(shape, dtype, device)
    generator = torch.Generator(device).manual_seed(0)
    first.weights.gate_up.normal_(0, 1 / math.sqrt(shape.hidden), generator=generator)
    first.weights.down.normal_(0, 1 / math.sqrt(shape.intermediate), generator=generator)
    copies = [first, *(make_copy(shape, dtype, device) for _ in range(count - 1))]
    for other in copies[1:]:
        other.memory.copy_(first.memory)
    return copies


def make_copy(shape: MlpShape, dtype: DType, device: torch.device) -> Copy:
    """Memory for one copy, all zero."""
    hidden, intermediate = shape.hidden, shape.intermediate
    gate_up = 2 * hidden * intermediate
    down_at = -(-gate_up // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS
    memory = torch.zeros(
        down_at + hidden * intermediate, dtype=dtypes.to_torch(dtype), device=device
    )
    weights = MlpWeights(
        memory[:gate_up].view(2 * intermediate, hidden),
        memory[down_at:].view(hidden, intermediate),
        Activation.SILU,
    )
    return Copy(memory, weights)
