"""Scratch memory of the CPU forms, kept and reused: fresh pages cost more than the product.

One growing buffer per name and dtype in each thread, shared by all layers and models there. What
a view holds is gone after the next request for the same name. On CUDA torch's caching allocator
does this already.
"""

import threading

import torch

STEP = 32
"""Elements of a row that oneDNN's bfloat16 product contracts at a time."""


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


def needs_apart_rows(dtype: torch.dtype, device: torch.device, columns: int) -> bool:
    """Whether a product that contracts `columns` has to be kept from reading the next row.

    At some row counts (16n + 1 and more) oneDNN's bfloat16 product on CPUs with AMX (torch 2.13) reads a
    last step past a row's end and multiplies what it finds there by zero: a NaN, an infinity or a number
    that overflows makes NaN of the row before.
    """
    return device.type == "cpu" and dtype is torch.bfloat16 and columns % STEP != 0


def apart_rows(name: str, like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """As `temporary`, with zeros between the rows, as many as such a product reads past their ends."""
    if not needs_apart_rows(like.dtype, like.device, columns):
        return temporary(name, like, rows, columns)
    wide = scratch(name, rows, columns + -columns % STEP, like.dtype)
    wide[:, columns:].zero_()
    return wide[:, :columns]
