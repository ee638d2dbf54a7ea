"""Messages between a frontend and a worker, over a local Unix SEQPACKET socket: one message a packet.

    frontend                         worker
       │ ──────── connect ─────────▶ │
       │ ◀─────── Welcome ────────── │   what it serves (JSON)
       │ ── Hello + arena's fd ────▶ │   the slots it may use
       │ ◀─────── Ready ──────────── │   mapped and registered
       │ ─────── Batch ────────────▶ │   a slot number, never a tensor
       │ ◀─────── Done ───────────── │   status, times, what was launched

Both ends are this package on one machine, so integers are native and no version is negotiated.
"""

import enum
import json
import struct
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

from gatefuse.link.packets import LinkError
from gatefuse.link.served_model import ServedModel, served_model
from gatefuse.trace_context import NOT_TRACED, PACKED_BYTES
from gatefuse_kernels.ledger import Entry


class Kind(enum.IntEnum):
    """The first byte of every packet."""

    WELCOME = 1
    HELLO = 2
    READY = 3
    BATCH = 4
    DONE = 5
    OPEN = 6  # from here on: see `memory`
    OPENED = 7
    CLOSE = 8
    MOVES = 9


class Status(enum.IntEnum):
    """How a batch ended on the worker."""

    OK = 0
    EXPIRED = 1  # every request in it was past its deadline: nothing was launched
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Welcome:
    """Sent by the worker on connect."""

    pid: int
    device: str
    batches_in_flight: int
    models: tuple[ServedModel, ...]
    in_place: bool = False  # its device moves rows to and from clients' memory by itself

    def pack(self) -> bytes:
        """One packet."""
        return bytes([Kind.WELCOME]) + json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, packet: bytes) -> Self:
        """The packet's content. Raises LinkError when it is not a Welcome."""
        raw = _json_body(packet, Kind.WELCOME)
        try:
            models = tuple(served_model(fields) for fields in raw.pop("models"))
            return cls(models=models, **raw)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LinkError("malformed welcome") from error


@dataclass(frozen=True, slots=True)
class Hello:
    """Sent by the frontend with the arena's descriptor."""

    slots: int
    region_bytes: int

    def pack(self) -> bytes:
        """One packet."""
        return bytes([Kind.HELLO]) + json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, packet: bytes) -> Self:
        """The packet's content. Raises LinkError when it is not a Hello."""
        try:
            return cls(**_json_body(packet, Kind.HELLO))
        except TypeError as error:
            raise LinkError("malformed hello") from error


READY_PACKET = bytes([Kind.READY])

_BATCH = struct.Struct(f"=BHIiIIQQ?{PACKED_BYTES}s")


class BatchMessage(NamedTuple):
    """Run `rows` rows of `columns` values, waiting in `slot`, through `model` and `layer`."""

    slot: int
    model: int
    layer: int
    rows: int
    columns: int
    batch_id: int
    last_deadline_ns: int  # CLOCK_MONOTONIC of the machine: past it nobody waits for the answer
    alone: bool = False  # it holds the only request there is: the next comes soon after its answer
    trace: bytes = NOT_TRACED  # its span, packed

    def pack(self) -> bytes:
        """One packet."""
        return _BATCH.pack(
            Kind.BATCH,
            self.slot,
            self.model,
            self.layer,
            self.rows,
            self.columns,
            self.batch_id,
            self.last_deadline_ns,
            self.alone,
            self.trace,
        )

    @classmethod
    def unpack(cls, packet: bytes) -> Self:
        """The packet's content. Raises LinkError when it is not a Batch."""
        if len(packet) != _BATCH.size or packet[0] != Kind.BATCH:
            raise LinkError("expected a batch")
        return cls(*_BATCH.unpack(packet)[1:])


_DONE = struct.Struct("=BBHIQdd")


class DoneMessage(NamedTuple):
    """A batch ended; its slot belongs to the frontend again.

    `inside_s` is the worker's time from taking the packet to sending this, `device_s` the device's time for the
    computation alone (CUDA events on a GPU), `padded_rows` what was computed, pad rows included.
    """

    status: Status
    slot: int
    padded_rows: int
    batch_id: int
    inside_s: float
    device_s: float
    entries: tuple[Entry, ...]

    def pack(self) -> bytes:
        """One packet."""
        head = _DONE.pack(
            Kind.DONE,
            self.status,
            self.slot,
            self.padded_rows,
            self.batch_id,
            self.inside_s,
            self.device_s,
        )
        return head + _pack_entries(self.entries)

    @classmethod
    def unpack(cls, packet: bytes) -> Self:
        """The packet's content. Raises LinkError when it is not a Done."""
        if len(packet) < _DONE.size or packet[0] != Kind.DONE:
            raise LinkError("expected a done message")
        _, status, slot, padded_rows, batch_id, inside_s, device_s = _DONE.unpack_from(packet)
        try:
            entries = _unpack_entries(packet[_DONE.size :])
            return cls(Status(status), slot, padded_rows, batch_id, inside_s, device_s, entries)
        except (TypeError, ValueError) as error:
            raise LinkError("malformed done message") from error


# A batch of the same model, layer and rows launches the same kernels: the text is made and read once.
@lru_cache(maxsize=8192)
def _pack_entries(entries: tuple[Entry, ...]) -> bytes:
    return json.dumps(entries).encode()


@lru_cache(maxsize=8192)
def _unpack_entries(text: bytes) -> tuple[Entry, ...]:
    return tuple(Entry(*fields) for fields in json.loads(text))


def _json_body(packet: bytes, kind: Kind) -> Any:
    if not packet or packet[0] != kind:
        raise LinkError(f"expected {kind.name.lower()}")
    try:
        return json.loads(packet[1:])
    except ValueError as error:
        raise LinkError(f"malformed {kind.name.lower()}") from error
