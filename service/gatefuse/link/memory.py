"""Messages about clients' memory, between a frontend and a worker that reads and writes it in place.

frontend                         worker
│ ──────── Open ────────────▶ │   a region; the packet after it carries its descriptor, if it is a file
│ ◀─────── Opened ─────────── │   whether its device can use it
│ ──────── Moves ───────────▶ │   which rows of the next batch are in regions instead of its slot
│ ──────── Close ───────────▶ │   no batch will name the region again
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

from gatefuse.link.messages import Kind
from gatefuse.link.packets import LinkError

_NUMBER = struct.Struct("=BI?")
_MOVE = struct.Struct("=?IQQQ")
_MOVES_A_PACKET = 256


class Move(NamedTuple):
    """Rows that a device moves between a batch's tensors and a region.

    `memory` is the region's number, `start` the byte in it, `offset` the byte of the batch's tensors as they would lie
    in the slot.
    """

    to_device: bool
    memory: int
    start: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class OpenMemory:
    """A region to be made usable by the device: part of a file, or a GPU's memory by its CUDA IPC handle (hex)."""

    number: int
    byte_size: int
    offset: int = 0
    handle: str = ""

    def pack(self) -> bytes:
        """One packet."""
        return bytes([Kind.OPEN]) + json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, packet: bytes) -> Self:
        """The packet's content. Raises LinkError when it is malformed."""
        try:
            return cls(**json.loads(packet[1:]))
        except (TypeError, ValueError) as error:
            raise LinkError("malformed open") from error


class MemoryNumber(NamedTuple):
    """Opened, which says whether it was, and Close, where that means nothing."""

    kind: Kind
    number: int
    ok: bool = True

    def pack(self) -> bytes:
        """One packet."""
        return _NUMBER.pack(self.kind, self.number, self.ok)

    @classmethod
    def unpack(cls, packet: bytes) -> Self:
        """The packet's content. Raises LinkError when it is malformed."""
        if len(packet) != _NUMBER.size:
            raise LinkError("malformed number of a memory")
        kind, number, ok = _NUMBER.unpack(packet)
        return cls(Kind(kind), number, ok)


def pack_moves(moves: Sequence[Move]) -> Iterator[bytes]:
    """The packets that tell of a batch's moves."""
    for first in range(0, len(moves), _MOVES_A_PACKET):
        some = moves[first : first + _MOVES_A_PACKET]
        yield bytes([Kind.MOVES]) + b"".join(_MOVE.pack(*move) for move in some)


def unpack_moves(packet: bytes) -> list[Move]:
    """The moves in one packet. Raises LinkError when it is malformed."""
    if len(packet) % _MOVE.size != 1:
        raise LinkError("malformed moves")
    return [Move(*fields) for fields in _MOVE.iter_unpack(packet[1:])]
