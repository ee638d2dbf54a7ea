"""A client's region of system memory, and parts of it.

The rows are read and written through the file's descriptor, never through a mapping: a client may shorten its file at
any time, and what touches a mapping beyond its end is killed by SIGBUS. The kernel copies once, into place, as fast as
memcpy does.
"""

import fcntl
import os
import stat
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from gatefuse.errors import InvalidRequest
from gatefuse.protocol_words import is_clients_region

if TYPE_CHECKING:
    from gatefuse.frontend.shared_memory.cuda import CudaRegion
    from gatefuse.frontend.shared_memory.registry import Registration

SHM_FOLDER = "/dev/shm"
MAX_KEY_LENGTH = 255
# Only what shm_open would take, and no FIFO may keep us waiting.
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class SystemRegion:
    """An open region: `byte_size` bytes of a POSIX shared-memory object from its `offset` on.

    The descriptor is closed with the last reference: a request that is still being answered holds one.
    """

    def __init__(self, name: str, fd: int, offset: int, byte_size: int) -> None:
        """`fd` is this object's from now on."""
        self.name = name
        self.fd = fd
        self.offset = offset
        self.byte_size = byte_size
        weakref.finalize(self, os.close, fd)

    def __repr__(self) -> str:
        """The name and the size."""
        return f"SystemRegion({self.name!r}, {self.byte_size} bytes)"

    def take_away_if_abandoned(self) -> bool:
        """Whether it was our own client's, and the client has ended, or is done with it, and did not say so.

        What a killed client left loses its name, and its memory with the last who has it open. Only an object that
        bears the region's own name does, as our client's do: a key is whatever somebody said.
        """
        if not is_clients_region(self.name):
            return False
        found = os.fstat(self.fd)
        if found.st_nlink > 0 and not _has_no_owner(self.fd):
            return False
        path = f"{SHM_FOLDER}/{self.name}"
        with suppress(OSError):  # gone, or another user's
            if os.path.samestat(os.lstat(path), found):
                os.unlink(path)
        return True

    def read_into(self, start: int, target: memoryview) -> None:
        """Fills `target` with the bytes from `start` on.

        Raises:
            InvalidRequest: the client has shortened the memory.
        """
        position, left = self.offset + start, target
        while left:
            try:
                count = os.preadv(self.fd, [left], position)
            except OSError as error:
                raise InvalidRequest(
                    "mismatch", f"shared memory region '{self.name}' cannot be read"
                ) from error
            if count == 0:
                raise self._shortened()
            position += count
            left = left[count:]

    def write(self, start: int, source: memoryview) -> None:
        """Writes `source` from `start` on.

        Raises:
            InvalidRequest: the client has shortened the memory, or forbidden to write to it.
        """
        position, left = self.offset + start, source
        # Writing beyond the end would lengthen the file.
        if os.fstat(self.fd).st_size < position + len(left):
            raise self._shortened()
        try:
            while left:
                count = os.pwrite(self.fd, left, position)
                position += count
                left = left[count:]
        except OSError as error:
            raise InvalidRequest(
                "mismatch", f"shared memory region '{self.name}' cannot be written to"
            ) from error

    def _shortened(self) -> InvalidRequest:
        return InvalidRequest(
            "size", f"shared memory region '{self.name}' is shorter than when it was registered"
        )


Region = Union[SystemRegion, "CudaRegion"]


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """`size` bytes of a region from its byte `start` on: the packed rows of a tensor, or room for some."""

    region: Region
    start: int
    size: int

    def __len__(self) -> int:
        """Its bytes."""
        return self.size

    def overlaps(self, other: "RegionSlice") -> bool:
        """Whether they share bytes, as far as the names of their regions tell."""
        is_apart = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.region is other.region and not is_apart

    def part(self, first: int, size: int) -> "RegionSlice":
        """`size` bytes of it from its byte `first` on."""
        return RegionSlice(self.region, self.start + first, size)

    def read_into(self, target: memoryview) -> None:
        """Copies all of it into `target`, of its size. Raises InvalidRequest as the region does."""
        assert isinstance(self.region, SystemRegion)
        self.region.read_into(self.start, target)

    def write(self, source: memoryview) -> None:
        """Copies `source` to its beginning. Raises InvalidRequest as the region does."""
        assert isinstance(self.region, SystemRegion)
        self.region.write(self.start, source)


def open_registered(registration: "Registration") -> SystemRegion:
    """Opens a region that some frontend registered.

    Raises:
        InvalidRequest: its object has gone, or another has taken its name.
    """
    fd = _open(registration.key)
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != registration.identity:
        os.close(fd)
        raise InvalidRequest(
            "mismatch",
            f"another shared memory object has taken the key of region '{registration.name}'",
        )
    return SystemRegion(registration.name, fd, registration.offset, registration.byte_size)


def take_away_if_abandoned(registration: "Registration") -> bool:
    """Whether the object of our own client has lost its name or its owner; without an owner it loses its name."""
    try:
        found = os.stat(f"{SHM_FOLDER}/{_object_name(registration.key)}", follow_symlinks=False)
    except OSError:
        return True
    if (found.st_dev, found.st_ino) != registration.identity:
        return True
    try:
        region = open_registered(registration)
    except InvalidRequest:
        return False  # it is there, and will be looked at again
    return region.take_away_if_abandoned()


def inspect(key: str, offset: int, byte_size: int) -> tuple[int, int]:
    """Checks that a key names an object of at least `offset` + `byte_size` bytes; returns what identifies it.

    Raises:
        InvalidRequest: it does not.
    """
    if byte_size < 1:
        raise InvalidRequest("size", "byte_size must be at least 1")
    fd = _open(key)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if offset + byte_size > found.st_size:
        raise InvalidRequest(
            "size",
            f"offset {offset} and byte_size {byte_size} reach beyond the end of the shared memory "
            f"object, which has {found.st_size} bytes",
        )
    return found.st_dev, found.st_ino


def _has_no_owner(fd: int) -> bool:
    """Whether nobody holds the lock that our own client holds on an object until it ends, however it does."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _open(key: str) -> int:
    name = _object_name(key)
    try:
        fd = os.open(f"{SHM_FOLDER}/{name}", _OPEN_FLAGS)
    except OSError as error:
        raise _not_openable() from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_openable()
    return fd


def _object_name(key: str) -> str:
    """The name without the slash that may stand before it."""
    name = key.removeprefix("/")
    ok = name.isprintable() and "/" not in name and name not in ("", ".", "..")
    if not ok or len(os.fsencode(name)) > MAX_KEY_LENGTH:
        raise InvalidRequest(
            "mismatch",
            "key must be the name of a POSIX shared memory object: '/' and up to "
            f"{MAX_KEY_LENGTH} printable bytes without another '/'",
        )
    return name


def _not_openable() -> InvalidRequest:
    # One text for all causes: it must not tell what there is on this host.
    return InvalidRequest("mismatch", "no shared memory object of that key can be opened")
