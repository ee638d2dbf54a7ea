"""Clients' memory as a GPU uses it in place: page-locked parts of files, and other processes' device memory.

By the driver's own calls: one that the runtime refuses would be reported again by whatever is launched next.
"""

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gatefuse.link.memory import OpenMemory
from gatefuse.worker.engine.base import DirectMove

_LAZY_PEER_ACCESS = 1


class MemoryRefusedError(ValueError):
    """The device cannot use the memory."""


class Driver(Protocol):
    """What is asked of the CUDA driver. Every call raises MemoryRefusedError if it fails."""

    def lock(self, address: int, byte_size: int) -> None:
        """Page-locks host memory, so that the device reads and writes it."""

    def unlock(self, address: int) -> None:
        """Undoes `lock`."""

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        """Maps another process' device memory; returns its address and how many bytes there are from there on."""

    def close_handle(self, address: int) -> None:
        """Undoes `open_handle`."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class CudaDriver:
    """The driver of this process' GPU."""

    def __init__(self) -> None:
        """Loads it; torch has made the device's context current on this thread."""
        self._lib: Any = ctypes.CDLL("libcuda.so.1")

    def lock(self, address: int, byte_size: int) -> None:
        """See `Driver`."""
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(byte_size), 0)

    def unlock(self, address: int) -> None:
        """See `Driver`."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        """See `Driver`."""
        found, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        given = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(found), given, _LAZY_PEER_ACCESS)
        try:
            self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), found)
        except MemoryRefusedError:
            self.close_handle(found.value)
            raise
        return found.value, base.value + size.value - found.value

    def close_handle(self, address: int) -> None:
        """See `Driver`."""
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code != 0:
            raise MemoryRefusedError(f"{name} returned {code}")


class LockedFile:
    """Part of a client's file, mapped and page-locked: what the client does to the file moves none of these pages."""

    def __init__(self, message: OpenMemory, fd: int, driver: Driver) -> None:
        """Raises MemoryRefusedError or ValueError where the file is shorter than it was."""
        within = message.offset % mmap.PAGESIZE
        self._driver = driver
        self._map = mmap.mmap(fd, within + message.byte_size, offset=message.offset - within)
        everything = torch.frombuffer(self._map, dtype=torch.uint8)
        self._address = everything.data_ptr()
        driver.lock(self._address, within + message.byte_size)
        self.tensor = everything[within:]

    def close(self) -> None:
        """Unlocks it; the mapping goes with the last tensor on it."""
        self._driver.unlock(self._address)
        del self.tensor


@dataclass(frozen=True)
class _Pointer:
    """Device memory, in the way in which array libraries tell each other of it."""

    address: int
    byte_size: int

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.byte_size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }


class SharedDeviceMemory:
    """Another process' memory on this GPU."""

    def __init__(self, message: OpenMemory, driver: Driver, device: torch.device) -> None:
        """Raises MemoryRefusedError where the handle leads nowhere, or to fewer bytes."""
        self._driver = driver
        self._address, found_bytes = driver.open_handle(bytes.fromhex(message.handle))
        if found_bytes < message.byte_size:
            self.close()
            raise MemoryRefusedError(f"{found_bytes} bytes, not {message.byte_size}")
        self.tensor = torch.as_tensor(_Pointer(self._address, message.byte_size), device=device)

    def close(self) -> None:
        """Unmaps it."""
        self._driver.close_handle(self._address)


def covers(moves: Sequence[DirectMove], tensors_bytes: int, *, inward: bool) -> bool:
    """True where the moves of one direction leave nothing for the slot."""
    if not moves:
        return False
    return sum(move.size for _, move in moves if move.to_device is inward) == tensors_bytes


def move_rows(moves: Sequence[DirectMove], buffer: torch.Tensor, *, inward: bool) -> None:
    """Queues the copies between clients' memory and a lane's buffer."""
    for memory, move in moves:
        if move.to_device is inward:
            here = buffer[move.offset : move.offset + move.size]
            there = memory.tensor[move.start : move.start + move.size]
            target, source = (here, there) if inward else (there, here)
            target.copy_(source, non_blocking=True)
