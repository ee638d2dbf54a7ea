"""Addresses that a kernel's 128-bit accesses need, for views that start elsewhere."""

from collections.abc import Callable

import torch

_ALIGNMENT_BYTES = 16
"""What the compiled kernels assume of a pointer."""


def starts_on_16_bytes(tensor: torch.Tensor) -> bool:
    """Whether the tensor starts on 16 bytes, as torch's own allocations do."""
    return tensor.data_ptr() % _ALIGNMENT_BYTES == 0


def run_aligned(
    x: torch.Tensor, out: torch.Tensor, launch: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    """`launch(x, out)`, by way of aligned copies where a view starts at an odd offset.

    Such a view would make Triton compile an unaligned variant on the spot.
    """
    aligned_x = x if starts_on_16_bytes(x) else x.clone()
    aligned_out = out if starts_on_16_bytes(out) else torch.empty_like(out)
    launch(aligned_x, aligned_out)
    if aligned_out is not out:
        out.copy_(aligned_out)
