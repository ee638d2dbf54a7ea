"""A frontend's end of what one worker has open: which regions its device can move rows to and from by itself."""

import weakref
from collections.abc import Callable
from typing import Protocol

from gatefuse.frontend.shared_memory import CudaRegion, SystemRegion
from gatefuse.frontend.shared_memory.region import Region
from gatefuse.link.memory import MemoryNumber, OpenMemory
from gatefuse.link.messages import Kind
from gatefuse.link.packets import LinkError

Send = Callable[[bytes, int | None], None]


class Lender(Protocol):
    """What says whether a worker moves rows of a region itself."""

    def number(self, region: Region) -> int | None:
        """The region's number at the worker; None where the frontend has to copy."""


class Nothing:
    """Of a worker that reads and writes its slots only."""

    def number(self, region: Region) -> int | None:
        """None."""
        return None


NOTHING = Nothing()


class _Lent:
    def __init__(self, number: int) -> None:
        self.number = number
        self.usable: bool | None = None  # None until the worker says


class LentMemory:
    """The regions that a worker was sent; each is opened at its first use and closed with its last reference here."""

    def __init__(self, send: Send) -> None:
        """`send` sends a packet to the worker, with a descriptor beside it."""
        self._send = send
        self._lent: weakref.WeakKeyDictionary[Region, _Lent] = weakref.WeakKeyDictionary()
        self._waiting: dict[int, tuple[_Lent, list[Callable[[bool], None]]]] = {}
        self._next = 0
        self._closed = False

    def number(self, region: Region) -> int | None:
        """See `Lender`. A GPU's memory has a number at once: nobody else can move its rows."""
        lent = self._lent.get(region) or self._open(region)
        if lent.usable or (isinstance(region, CudaRegion) and lent.usable is None):
            return lent.number
        return None

    def when_open(self, region: Region, told: Callable[[bool], None]) -> None:
        """Tells whether the worker can use a region, once it has said so."""
        lent = self._lent.get(region) or self._open(region)
        if lent.usable is None:
            self._waiting[lent.number][1].append(told)
        else:
            told(lent.usable)

    def opened(self, message: MemoryNumber) -> None:
        """The worker's word on a region."""
        lent, waiting = self._waiting.pop(message.number)
        lent.usable = message.ok
        for told in waiting:
            told(message.ok)

    def close(self) -> None:
        """The worker is gone, and has nothing open any more."""
        self._closed = True
        for _, waiting in self._waiting.values():
            for told in waiting:
                told(False)
        self._waiting.clear()

    def _open(self, region: Region) -> _Lent:
        self._next += 1
        lent = self._lent[region] = _Lent(self._next)
        self._waiting[lent.number] = lent, []
        if isinstance(region, SystemRegion):
            message = OpenMemory(lent.number, region.byte_size, region.offset)
            self._try_send(message.pack())
            self._try_send(bytes([Kind.OPEN]), region.fd)
        else:
            message = OpenMemory(lent.number, region.byte_size, handle=region.handle.hex())
            self._try_send(message.pack())
        finish = weakref.finalize(region, self._forget, lent.number)
        finish.atexit = False
        return lent

    def _forget(self, number: int) -> None:
        if not self._closed:
            self._try_send(MemoryNumber(Kind.CLOSE, number).pack())

    def _try_send(self, packet: bytes, fd: int | None = None) -> None:
        try:
            self._send(packet, fd)
        except LinkError:
            self._closed = True  # the link finds out by itself, and starts anew
