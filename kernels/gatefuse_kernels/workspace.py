"""Scratch memory of the CPU forms, kept and reused: fresh pages cost more than the product.

One growing buffer per name and dtype in each thread, shared by all layers and models there. What
a view holds is gone after the next request for the same name. On CUDA torch's caching allocator
does this already.
"""

import threading

import torch


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype], torch.Tensor] = {}


_buffers = _Buffers()


def scratch(name: str, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised contiguous `[rows, columns]` CPU view of the thread's buffer `name`."""
    held = _buffers.held
    needed = rows * columns
    key = (name, dtype)
    buffer = held.get(key)
    if buffer is None or buffer.numel() < needed:
        buffer = held[key] = torch.empty(needed, dtype=dtype)
    return buffer[:needed].view(rows, columns)


def temporary(name: str, like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """An uninitialised `[rows, columns]` tensor of `like`'s dtype and device for one call."""
    if like.device.type == "cpu":
        return scratch(name, rows, columns, like.dtype)
    return torch.empty(rows, columns, dtype=like.dtype, device=like.device)
