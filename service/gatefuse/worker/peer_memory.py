"""A worker's end of the memory that one frontend lends it: what is open, and what the next batch moves."""

import logging
import os
import socket

from gatefuse.link import packets
from gatefuse.link.memory import MemoryNumber, Move, OpenMemory, unpack_moves
from gatefuse.link.messages import Kind
from gatefuse.link.packets import LinkError
from gatefuse.worker.engine.base import DirectMove, Engine, EngineFault, OpenedMemory

log = logging.getLogger(__name__)

FD_TIMEOUT_S = 1.0


class UnknownMemoryError(RuntimeError):
    """A batch names memory that the device could not use."""


class PeerMemory:
    """The regions of one frontend."""

    def __init__(self, engine: Engine, sock: socket.socket) -> None:
        """Has `engine` open what comes over `sock`."""
        self._engine = engine
        self._sock = sock
        self._open: dict[int, OpenedMemory] = {}
        self._moves: list[Move] = []

    def handle(self, packet: bytes) -> None:
        """A packet about memory. Raises LinkError when it is none, or the frontend is gone."""
        kind = packet[0]
        if kind == Kind.MOVES:
            self._moves += unpack_moves(packet)
        elif kind == Kind.OPEN:
            message = OpenMemory.unpack(packet)
            opened = MemoryNumber(Kind.OPENED, message.number, self._opens(message))
            packets.send(self._sock, opened.pack())
        elif kind == Kind.CLOSE:
            memory = self._open.pop(MemoryNumber.unpack(packet).number, None)
            if memory is not None:
                self._close(memory)
        else:
            raise LinkError(f"unexpected packet {kind}")

    def take_moves(self) -> tuple[DirectMove, ...]:
        """What the batch that comes now moves by itself. Raises UnknownMemoryError."""
        if not self._moves:
            return ()
        moves, self._moves = self._moves, []
        try:
            return tuple(DirectMove(self._open[move.memory], move) for move in moves)
        except KeyError as error:
            raise UnknownMemoryError(f"memory {error} is not open") from error

    def close(self) -> None:
        """Closes all; no batch of the frontend is at the device."""
        while self._open:
            self._close(self._open.popitem()[1])

    def _close(self, memory: OpenedMemory) -> None:
        try:
            self._engine.close_memory(memory)
        except ValueError as error:
            log.warning("a client's memory could not be let go: %s", error)

    def _opens(self, message: OpenMemory) -> bool:
        fd = -1 if message.handle else self._receive_fd()
        try:
            self._open[message.number] = self._engine.open_memory(message, fd)
        except EngineFault:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            # A client's memory may be gone or shortened, or its handle made up.
            log.warning("a client's memory cannot be used in place: %s", error)
            return False
        finally:
            if fd >= 0:
                os.close(fd)
        return True

    def _receive_fd(self) -> int:
        """The descriptor in the packet right behind; a frontend that dies between the two is soon given up."""
        before_s = self._sock.gettimeout()
        self._sock.settimeout(FD_TIMEOUT_S)
        try:
            return packets.receive_with_fd(self._sock)[1]
        finally:
            self._sock.settimeout(before_s)
