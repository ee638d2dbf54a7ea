"""Shared memory of a client: regions that a server on the same host reads rows from and writes answers to.

The name of a region is new and cannot be guessed, so a server that can open it is on this host. Regions are kept for
later requests, since making one costs far more than copying into it. One whose request failed is not used again: the
server may still be reading or writing it.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.util import Finalize
from typing import Literal, TypeAlias

from gatefuse.client.forking import renew_in_child
from gatefuse.client.messages import Place
from gatefuse_protos import open_inference_pb2 as pb

SharedMemory: TypeAlias = Literal["auto", "on", "off"]
# Below this, pointing at the rows costs more than sending them.
FROM_BYTES = 256 * 1024
MAX_REGIONS = 64
_GRAIN_BYTES = 2**20
_ALIGNMENT_BYTES = 256


class Region:
    """A fresh shared-memory object, mapped; it is gone when the process ends.

    It is locked by `flock` as long as this object lives. When the process is killed the kernel gives the lock back, and
    the server, which then gets it, takes away what is left. A forked child that lives on keeps it.
    """

    def __init__(self, byte_size: int) -> None:
        """Raises OSError where there is no room for so much."""
        self.name = f"gatefuse-{os.getpid()}-{secrets.token_hex(16)}"
        self.byte_size = byte_size
        path = f"/dev/shm/{self.name}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, fd)
        # One of multiprocessing's: its children end without what the interpreter does at its end.
        self.unlink = Finalize(self, _unlink, args=(path, os.getpid()), exitpriority=10)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A page that cannot be had later would end the process by a signal.
        os.posix_fallocate(fd, 0, byte_size)
        self.view = memoryview(mmap.mmap(fd, byte_size))

    def registration(self) -> pb.SystemSharedMemoryRegisterRequest:
        """The request that tells a server of it."""
        return pb.SystemSharedMemoryRegisterRequest(
            name=self.name, key=f"/{self.name}", byte_size=self.byte_size
        )


class Lease:
    """A region for one request: its inputs one after the other, then its answers."""

    def __init__(self, pool: RegionPool, region: Region) -> None:
        """`region` is this request's until it is given back, or dropped with this object."""
        self._pool = pool
        self._region = region
        self._used_bytes = 0
        self._drop = weakref.finalize(self, pool.drop, region)
        self._drop.atexit = False

    @property
    def region_name(self) -> str:
        """The name under which the server knows the memory."""
        return self._region.name

    def allocate(self, size_bytes: int) -> Place:
        """The next part of the region."""
        start = self._used_bytes
        self._used_bytes += padded(size_bytes)
        view = self._region.view[start : start + size_bytes]
        return Place(self._region.name, start, view)

    def allocate_outputs(self, names: Sequence[str], size_bytes: int) -> Mapping[str, Place]:
        """Room for each output."""
        return {name: self.allocate(size_bytes) for name in names}

    def give_back(self) -> None:
        """The answer was read: the region may serve another request."""
        if self._drop.detach() is not None:
            self._pool.give_back(self._region)

    def drop(self) -> None:
        """There was no answer: the region is not used again. Does nothing after ``give_back``."""
        self._drop()


class RegionPool:
    """The regions that the server knows of. Safe for threads.

    A forked child starts with none: it shares the memory of its parent's, which two requests would write at once.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Knows no region any more, and leaves them all as they are: they are the parent process's."""
        # Leases are dropped wherever garbage is collected, here too.
        self._lock = threading.RLock()
        self._free: list[Region] = []
        self._all: set[Region] = set()
        self._dropped: dict[str, None] = {}

    @property
    def full(self) -> bool:
        """True where no further region would be kept."""
        return len(self._all) >= MAX_REGIONS

    def take(self, size_bytes: int) -> Lease | None:
        """The smallest free region of at least `size_bytes`; None if there is none."""
        with self._lock:
            fitting = [region for region in self._free if region.byte_size >= size_bytes]
            if not fitting:
                return None
            region = min(fitting, key=_byte_size)
            self._free.remove(region)
        return Lease(self, region)

    def add(self, region: Region) -> Lease:
        """Takes in a region, already leased; the server may know of it from now on."""
        with self._lock:
            self._all.add(region)
        return Lease(self, region)

    def give_back(self, region: Region) -> None:
        """The region is free; one beyond those that are kept is dropped."""
        with self._lock:
            is_kept = len(self._all) <= MAX_REGIONS
            if is_kept and region in self._all:
                self._free.append(region)
        if not is_kept:
            self.drop(region)

    def drop(self, region: Region) -> None:
        """The region is not to be used again; its name goes at once, its memory with the last who maps it."""
        with self._lock:
            if region in self._all:
                self._all.remove(region)
                self._dropped[region.name] = None
        region.unlink()

    def close(self) -> None:
        """Drops every region, those of requests that are still open too."""
        with self._lock:
            gone = list(self._all)
            self._all.clear()
            self._free.clear()
            self._dropped.update((region.name, None) for region in gone)
        for region in gone:
            region.unlink()

    def make_room(self) -> None:
        """Drops the smallest free region where there are too many to make another."""
        with self._lock:
            smallest = min(self._free, key=_byte_size, default=None) if self.full else None
            if smallest is not None:
                self._free.remove(smallest)
        if smallest is not None:
            self.drop(smallest)

    @property
    def has_dropped(self) -> bool:
        """True where the server may still have regions registered that are not used again."""
        return bool(self._dropped)

    def take_dropped(self, at_most: int | None = None) -> list[str]:
        """Names of such regions, of which somebody is about to tell the server."""
        with self._lock:
            names = list(self._dropped)[:at_most]
            for name in names:
                del self._dropped[name]
        return names

    def put_back(self, names: Iterable[str]) -> None:
        """The server was not told of these."""
        with self._lock:
            self._dropped.update(dict.fromkeys(names))

    def forget(self, name: str) -> None:
        """The server knows a dropped region no more: it need not be told."""
        with self._lock:
            self._dropped.pop(name, None)


def padded(size_bytes: int) -> int:
    """What a tensor takes of a region."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def region_bytes(tensor_bytes: int, tensors: int) -> int:
    """The size of a region for so many tensors, with room for somewhat larger ones."""
    return math.ceil(tensors * padded(tensor_bytes) / _GRAIN_BYTES) * _GRAIN_BYTES


def _byte_size(region: Region) -> int:
    return region.byte_size


def _unlink(path: str, pid: int) -> None:
    # A forked child has a copy of the object, and no say in the parent's memory.
    if os.getpid() == pid:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
