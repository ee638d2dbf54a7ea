"""Shared-memory slots: the frontend writes a batch's rows into one, the worker writes the answers beside them.

The memory has no name: it is a memfd whose descriptor travels over the link, so nothing is left behind when a process
dies and nothing else can open it. One arena belongs to one (frontend, worker) link, and a slot to one batch at a time.
"""

import contextlib
import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Self

PAGE_BYTES = mmap.PAGESIZE
# Fresh pages cost more than any copy: up to this size they are faulted in once, when the link opens.
PREFAULT_LIMIT_BYTES = 256 * 2**20


# Where a tensor of several in a region may start: what a GPU's copies and 128-bit accesses like best.
TENSOR_ALIGNMENT_BYTES = 256


def tensor_stride(rows: int, row_bytes: int) -> int:
    """Bytes from one tensor of a region to the next, each of `rows` rows."""
    return -(-rows * row_bytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES


def tensors_bytes(count: int, rows: int, row_bytes: int) -> int:
    """Bytes that `count` tensors, one after the other in a region, take up from the first to the last."""
    return (count - 1) * tensor_stride(rows, row_bytes) + rows * row_bytes


def _page_multiple(size_bytes: int) -> int:
    return -(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """`slots` equal slots, each an input region followed by an output region of `region_bytes` each.

    A region holds a batch's tensors one after the other, `tensor_stride` bytes apart for the batch's own rows.
    """

    slots: int
    region_bytes: int

    @classmethod
    def for_regions(cls, slots: int, largest_region_bytes: int) -> Self:
        """A layout whose regions hold `largest_region_bytes` and start on page boundaries."""
        return cls(slots, _page_multiple(largest_region_bytes))

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole arena."""
        return self.slots * 2 * self.region_bytes

    def input_offset(self, slot: int) -> int:
        """Where the rows of `slot` start."""
        return slot * 2 * self.region_bytes

    def output_offset(self, slot: int) -> int:
        """Where the answers of `slot` start."""
        return self.input_offset(slot) + self.region_bytes


class Arena:
    """A mapped arena. `fd` stays open so that it can be sent to the worker; `close` releases both."""

    def __init__(self, fd: int, layout: SlotLayout) -> None:
        """Maps `fd`, which this object owns from now on. Raises ValueError when it is smaller than the layout."""
        self.fd = fd
        self.layout = layout
        flags = mmap.MAP_SHARED
        if layout.total_bytes <= PREFAULT_LIMIT_BYTES:
            flags |= mmap.MAP_POPULATE
        try:
            self.map = mmap.mmap(fd, layout.total_bytes, flags=flags)
        except (OSError, ValueError):
            os.close(fd)
            raise
        self._view = memoryview(self.map)

    @classmethod
    def create(cls, layout: SlotLayout) -> Self:
        """A new arena of zeros, sealed to its size: no peer can shrink it under the other's feet."""
        fd = os.memfd_create("gatefuse-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, layout.total_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return cls(fd, layout)

    def input(self, slot: int) -> memoryview:
        """The input region of `slot`, as writable bytes."""
        start = self.layout.input_offset(slot)
        return self._view[start : start + self.layout.region_bytes]

    def output(self, slot: int) -> memoryview:
        """The output region of `slot`, as bytes."""
        start = self.layout.output_offset(slot)
        return self._view[start : start + self.layout.region_bytes]

    def close(self) -> None:
        """Unmaps and closes. Views handed out before must be gone, or the mapping stays until they are."""
        self._view.release()
        # A tensor over the mapping may still be alive; the pages go with the last of them.
        with contextlib.suppress(BufferError):
            self.map.close()
        os.close(self.fd)
