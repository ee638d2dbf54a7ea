"""The frontend's end of a link: connects to one worker, keeps its arena, and connects again when the worker is gone."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gatefuse import metrics
from gatefuse.batching.batcher import Limits, Sealed
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.shared_memory.lent_memory import NOTHING, LentMemory, Nothing
from gatefuse.frontend.worker_port import Slot
from gatefuse.link import messages, packets
from gatefuse.link.arena import Arena, SlotLayout
from gatefuse.link.memory import MemoryNumber, pack_moves
from gatefuse.link.messages import BatchMessage, DoneMessage, Hello, Welcome
from gatefuse.link.packets import LinkError
from gatefuse.link.served_model import ServedModel
from gatefuse.run_folder.slots import device_label, hang_marker, slot_of
from gatefuse.trace_context import NOT_TRACED

log = logging.getLogger(__name__)

RECONNECT_S = 0.05
# A client may set a deadline that no 64-bit count of nanoseconds holds; past decades of uptime nobody looks.
FURTHEST_DEADLINE_S = 1e9


@dataclass(slots=True)
class ArenaSlot:
    """One slot of the arena, its two regions mapped once."""

    index: int
    input: memoryview
    output: memoryview


@dataclass(slots=True)
class _InFlight:
    sealed: Sealed
    slot: ArenaSlot
    sent_s: float


class WorkerLink:
    """Link to the worker that listens at `path`; `credits` is 0 whenever it is not connected."""

    def __init__(
        self,
        path: Path,
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        limits: Callable[[str], Limits | None],
        batch_timeout_s: float,
    ) -> None:
        """`limits` gives the batching limits of a load, None for one that is not served yet.

        Past `batch_timeout_s` a silent worker is killed.
        """
        self.path = path
        self.name = path.stem
        self.models: Mapping[str, ServedModel] = {}
        self._limits_of: dict[str, Limits] = {}
        self.device = ""
        self.device_label = ""
        self.memory: LentMemory | Nothing = NOTHING
        self._dispatcher = dispatcher
        self._loop = loop
        self._limits = limits
        self._batch_timeout_s = batch_timeout_s
        self._sock: socket.socket | None = None
        self._arena: Arena | None = None
        self._pid = 0
        self._free: list[ArenaSlot] = []
        self._in_flight: dict[int, _InFlight] = {}
        self._next_batch_id = 0
        self.connected = asyncio.Event()  # once it was ready
        self._ready = False
        self._retired = False
        self.closed = False

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        state = "ready" if self._ready else "connecting"
        return f"WorkerLink({self.path.name}, {state}, pid={self._pid}, in_flight={len(self._in_flight)})"

    @property
    def credits(self) -> int:
        """Batches the worker can take now."""
        return len(self._free) if self._ready and not self._retired else 0

    @property
    def ready(self) -> bool:
        """True while it is connected and its worker can be sent batches."""
        return self._ready

    def open(self) -> None:
        """Connects, and tries again every RECONNECT_S until the worker listens."""
        if self.closed:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            self._loop.call_later(RECONNECT_S, self.open)
            return
        sock.setblocking(False)
        self._sock = sock
        self._loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """Closes for good."""
        self.closed = True
        self._disconnect()

    def retire(self) -> None:
        """Another link to the worker takes over: sends no more batches, and closes after the last answer."""
        self._retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._retired and not self._in_flight:
            self._dispatcher.worker_lost(self, [])
            self.close()

    def claim_slot(self) -> Slot:
        """A free slot, which the next `send` uses."""
        return self._free[-1]

    def send(self, sealed: Sealed, slot: Slot, last_deadline_s: float) -> None:
        """Sends the batch whose rows are in `slot`; a worker that is gone gives it back to the dispatcher."""
        taken = self._free.pop()
        assert taken is slot
        self._next_batch_id += 1
        self._in_flight[self._next_batch_id] = _InFlight(sealed, taken, time.monotonic())
        message = BatchMessage(
            slot=taken.index,
            model=self.models[sealed.key.model].index,
            layer=sealed.key.layer,
            rows=sealed.rows,
            columns=sealed.key.columns,
            batch_id=self._next_batch_id,
            alone=self._dispatcher.alone,
            last_deadline_ns=int(min(last_deadline_s, FURTHEST_DEADLINE_S) * 1e9),
            trace=NOT_TRACED if sealed.trace is None else sealed.trace.context.pack(),
        )
        try:
            assert self._sock is not None
            for packet in pack_moves(sealed.moves):
                packets.send(self._sock, packet)
            packets.send(self._sock, message.pack())
        except LinkError:
            self._loop.call_soon(self._lost, "died")

    def look(self) -> None:
        """Handles an answer if one is there; does not wait."""
        if self._ready:
            self._readable()

    def kill_if_hung(self, now_s: float) -> None:
        """Kills a worker that holds a batch for longer than the timeout; its rows run elsewhere."""
        oldest_s = min((batch.sent_s for batch in self._in_flight.values()), default=now_s)
        if now_s - oldest_s <= self._batch_timeout_s:
            return
        log.error("%r is silent for %.1f s: killing it", self, now_s - oldest_s)
        hang_marker(self.path, self._pid).touch()
        # It may have died just now.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._lost("timeout")

    def _readable(self) -> None:
        # One packet a call: the loop calls again while there are more.
        assert self._sock is not None
        limit = packets.MAX_MESSAGE_BYTES if self._ready else packets.MAX_WELCOME_BYTES
        try:
            self._handle(packets.receive(self._sock, limit))
        except BlockingIOError:
            return
        except LinkError:
            self._lost("died")
        except Exception:
            # Nobody else can answer for these batches: they run again elsewhere.
            log.exception("%r could not be read", self)
            self._lost("died")

    def _handle(self, packet: bytes) -> None:
        kind = packet[0]
        if kind == messages.Kind.DONE:
            self._done(DoneMessage.unpack(packet))
        elif kind == messages.Kind.OPENED and isinstance(self.memory, LentMemory):
            self.memory.opened(MemoryNumber.unpack(packet))
        elif kind == messages.Kind.WELCOME:
            self._greet(Welcome.unpack(packet))
        elif kind == messages.Kind.READY:
            self._ready = True
            self.connected.set()
            log.info("%r connected", self)
            self._dispatcher.worker_ready(self, self._limits_of)
        else:
            raise LinkError(f"unexpected packet {kind}")

    def _greet(self, welcome: Welcome) -> None:
        """Makes an arena that fits what the worker serves, and sends it."""
        self._pid = welcome.pid
        self.device = welcome.device
        self.device_label = device_label(welcome.device, slot_of(self.path))
        found = {model.key: self._limits(model.key) for model in welcome.models}
        self._limits_of = {key: limits for key, limits in found.items() if limits is not None}
        self.models = {model.key: model for model in welcome.models if model.key in self._limits_of}
        largest = max((model.region_bytes for model in welcome.models), default=1)
        layout = SlotLayout.for_regions(welcome.batches_in_flight, largest)
        self._arena = Arena.create(layout)
        self._free = [
            ArenaSlot(index, self._arena.input(index), self._arena.output(index))
            for index in range(layout.slots)
        ]
        assert self._sock is not None
        hello = Hello(layout.slots, layout.region_bytes)
        packets.send(self._sock, hello.pack(), self._arena.fd)
        if welcome.in_place:
            self.memory = LentMemory(partial(packets.send, self._sock))

    def _done(self, done: DoneMessage) -> None:
        batch = self._in_flight[done.batch_id]
        call_s = time.monotonic() - batch.sent_s
        self._dispatcher.batch_done(self, batch.sealed, batch.slot, done, call_s)
        # Only now: if its rows could not be handed out, they run again.
        del self._in_flight[done.batch_id]
        self._free.append(batch.slot)
        if self._retired:
            self._close_if_done()
        else:
            self._dispatcher.slot_free()

    def _lost(self, outcome: str) -> None:
        """The worker is gone: its batches are the dispatcher's again, and a new connection is tried."""
        if self._sock is None:
            return
        log.warning("%r lost its worker", self)
        batches = [batch.sealed for batch in self._in_flight.values()]
        for batch in self._in_flight.values():
            metrics.call_ended_badly(outcome, time.monotonic() - batch.sent_s)
        self._disconnect()
        self._dispatcher.worker_lost(self, batches)
        if self._retired:
            self.closed = True
        self.open()

    def _disconnect(self) -> None:
        self._ready = False
        if isinstance(self.memory, LentMemory):
            self.memory.close()
        self.memory = NOTHING
        self._in_flight.clear()
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
        for slot in self._free:
            slot.input.release()
            slot.output.release()
        self._free.clear()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
