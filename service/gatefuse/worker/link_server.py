"""The worker's end of its links: moves batches between frontends and the engine."""

import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from gatefuse.config import ConfigError
from gatefuse.link import messages, packets
from gatefuse.link.arena import Arena, SlotLayout
from gatefuse.link.messages import BatchMessage, DoneMessage, Hello, Status, Welcome
from gatefuse.link.packets import LinkError
from gatefuse.link.served_model import ServedModel
from gatefuse.logs import FIELDS
from gatefuse.trace_context import unpack
from gatefuse.worker.engine.base import Engine, EngineFault, Ticket
from gatefuse.worker.peer_memory import PeerMemory, UnknownMemoryError

log = logging.getLogger(__name__)

# A client that is alone sends again a round trip after its answer. A worker that has not gone to sleep by then answers
# a tenth of a millisecond sooner, its caches warm. With a single core it would only be in the way.
STAY_AWAKE_S = 2e-3 if len(os.sched_getaffinity(0)) > 1 else 0.0


def welcome(engine: Engine, models: Sequence[ServedModel]) -> bytes:
    """What a frontend is told when it connects. Raises ConfigError when it does not fit one packet."""
    packet = Welcome(
        os.getpid(), engine.device, engine.batches_in_flight, tuple(models), engine.in_place
    ).pack()
    if len(packet) > packets.MAX_WELCOME_BYTES:
        raise ConfigError(
            f"the descriptions of {len(models)} models take {len(packet)} bytes, more than "
            f"{packets.MAX_WELCOME_BYTES}: shorten the expressions, or spread the models over services"
        )
    return packet


class _Peer:
    """One connected frontend."""

    def __init__(self, sock: socket.socket, engine: Engine) -> None:
        self.sock = sock
        self.memory = PeerMemory(engine, sock)
        self.arena: Arena | None = None
        self.at_engine = 0
        self.gone = False


class _Call(NamedTuple):
    what: Callable[[], None]
    done: "Future[None]"


class LinkServer:
    """Moves batches between the links and the engine, on one thread that blocks only when the engine is idle."""

    def __init__(
        self,
        engine: Engine,
        server: socket.socket,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """`server` is a listening link socket; `on_failure` is told of each batch that the engine could not start."""
        self._engine = engine
        self._on_failure = on_failure
        self._server = server
        self._peers: dict[int, _Peer] = {}
        self._awake_until_s = 0.0
        self._poller = select.epoll()
        self._poller.register(server.fileno(), select.EPOLLIN)
        self._calls: deque[_Call] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(self._wake_fd, select.EPOLLIN)

    def run(self) -> None:
        """Serves until the process ends. Raises EngineFault when the device must not be used any more."""
        while True:
            # While the device computes, its end is polled for, and new packets between two polls.
            awake = self._engine.busy or time.monotonic() < self._awake_until_s
            timeout_s = 0 if awake else -1
            if not self._engine.busy or self._engine.has_room:
                for fd, _ in self._poller.poll(timeout_s):
                    self._on_readable(fd)
            self._return_completed()

    def call(self, what: Callable[[], None]) -> None:
        """Has the serving thread do something between two batches, none of which is then at the engine.

        Waits for it, and raises what it raises. For other threads.
        """
        call = _Call(what, Future())
        self._calls.append(call)
        os.eventfd_write(self._wake_fd, 1)
        call.done.result()

    def _make_calls(self) -> None:
        os.eventfd_read(self._wake_fd)
        while self._engine.busy:
            self._return_completed()
        while self._calls:
            call = self._calls.popleft()
            try:
                call.what()
            except Exception as error:
                call.done.set_exception(error)
            else:
                call.done.set_result(None)

    def _on_readable(self, fd: int) -> None:
        if fd == self._wake_fd:
            self._make_calls()
            return
        if fd == self._server.fileno():
            self._accept()
            return
        peer = self._peers.get(fd)
        if peer is None:
            # Found gone when another's answers were sent, after the poll that reported it.
            return
        if peer.arena is not None and not self._engine.has_room:
            return
        try:
            if peer.arena is None:
                self._attach(peer)
            else:
                self._handle(peer, packets.receive(peer.sock))
        except LinkError:
            self._drop(peer)
        self._return_completed()

    def _accept(self) -> None:
        sock, _ = self._server.accept()
        peer = _Peer(sock, self._engine)
        self._peers[sock.fileno()] = peer
        self._poller.register(sock.fileno(), select.EPOLLIN)
        try:
            packets.send(sock, welcome(self._engine, self._engine.served))
        except LinkError:
            self._drop(peer)

    def _attach(self, peer: _Peer) -> None:
        packet, fd = packets.receive_with_fd(peer.sock)
        try:
            hello = Hello.unpack(packet)
        except LinkError:
            os.close(fd)
            raise
        try:
            peer.arena = Arena(fd, SlotLayout(hello.slots, hello.region_bytes))
        except (OSError, ValueError) as error:
            raise LinkError("the arena cannot be mapped") from error
        self._engine.attach(peer.arena)
        packets.send(peer.sock, messages.READY_PACKET)

    def _handle(self, peer: _Peer, packet: bytes) -> None:
        if packet[0] != messages.Kind.BATCH:
            peer.memory.handle(packet)
            return
        assert peer.arena is not None
        message = BatchMessage.unpack(packet)
        ticket = Ticket(message, peer.arena, peer, time.monotonic())
        try:
            if moves := peer.memory.take_moves():
                ticket = ticket._replace(moves=moves)
        except UnknownMemoryError:
            _log_failure(ticket)
            self._send(peer, _without_rows(ticket, Status.FAILED))
            return
        self._start(peer, ticket)

    def _start(self, peer: _Peer, ticket: Ticket) -> None:
        message = ticket.message
        if time.monotonic_ns() >= message.last_deadline_ns:
            self._send(peer, _without_rows(ticket, Status.EXPIRED))
            return
        peer.at_engine += 1
        if message.alone:
            self._awake_until_s = ticket.started_s + STAY_AWAKE_S
        try:
            self._engine.submit(ticket)
        except EngineFault:
            raise
        except Exception as error:
            _log_failure(ticket)
            self._on_failure(error)
            peer.at_engine -= 1
            self._send(peer, _without_rows(ticket, Status.FAILED))

    def _return_completed(self) -> None:
        for ticket, done in self._engine.completed():
            peer: _Peer = ticket.peer
            peer.at_engine -= 1
            if peer.gone:
                self._release(peer)
            else:
                self._send(peer, done)

    def _send(self, peer: _Peer, done: DoneMessage) -> None:
        try:
            packets.send(peer.sock, done.pack())
        except LinkError:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if peer.gone:
            return
        peer.gone = True
        self._poller.unregister(peer.sock.fileno())
        del self._peers[peer.sock.fileno()]
        peer.sock.close()
        self._release(peer)

    def _release(self, peer: _Peer) -> None:
        """Frees a lost frontend's arena once none of its batches is at the device."""
        if peer.at_engine == 0 and peer.arena is not None:
            peer.memory.close()
            self._engine.detach(peer.arena)
            peer.arena.close()
            peer.arena = None


def _log_failure(ticket: Ticket) -> None:
    """The exception that is being handled, and the trace that shows the batch."""
    context = unpack(ticket.message.trace)
    fields = {} if context is None else {"trace_id": context.trace}
    log.exception("a batch failed", extra={FIELDS: fields})


def _without_rows(ticket: Ticket, status: Status) -> DoneMessage:
    message = ticket.message
    inside_s = time.monotonic() - ticket.started_s
    return DoneMessage(status, message.slot, 0, message.batch_id, inside_s, 0.0, ())
