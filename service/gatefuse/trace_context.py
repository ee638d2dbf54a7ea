"""W3C Trace Context: which trace a request or a batch belongs to, and whether that trace is kept.

Knows headers and identifiers only, nothing of what exports spans.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_STATE_CHARACTERS = 512  # what others must pass on at least

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VERSION_0, _NO_VERSION = "00", "ff"
_SAMPLED = 1

_PACKED = struct.Struct(">QQQ")
PACKED_BYTES = _PACKED.size
NOT_TRACED = bytes(PACKED_BYTES)
"""The packed form of no context."""

_random = Random()  # seeded by the system; identifiers need not be secret


class SpanContext(NamedTuple):
    """Names one span that is kept: `trace_id` of 128 bits, `span_id` of 64, neither zero."""

    trace_id: int
    span_id: int
    state: str = ""

    @property
    def trace(self) -> str:
        """The trace's identifier as headers and logs write it."""
        return f"{self.trace_id:032x}"

    def child(self) -> "SpanContext":
        """A new span in the same trace."""
        return SpanContext(self.trace_id, _identifier(64), self.state)

    def pack(self) -> bytes:
        """PACKED_BYTES bytes; the state is left out."""
        return _PACKED.pack(self.trace_id >> 64, self.trace_id & (1 << 64) - 1, self.span_id)


class Parent(NamedTuple):
    """The caller's span, and whether the caller keeps it."""

    context: SpanContext
    sampled: bool


@dataclass(slots=True)
class RequestTrace:
    """A request whose spans are kept: its own span, its caller's, and those of the batches that its rows were in."""

    context: SpanContext
    parent: SpanContext | None
    batches: list[SpanContext] = field(default_factory=list)


@dataclass(slots=True)
class BatchTrace:
    """A batch with rows of requests whose spans are kept: the root of its own trace, and those requests' spans."""

    context: SpanContext
    members: tuple[SpanContext, ...]
    sealed_s: float


def new_root() -> SpanContext:
    """The first span of a new trace."""
    return SpanContext(_identifier(128), _identifier(64))


def unpack(packed: bytes) -> SpanContext | None:
    """What `SpanContext.pack` packed; None for NOT_TRACED."""
    high, low, span_id = _PACKED.unpack(packed)
    return SpanContext(high << 64 | low, span_id) if span_id else None


def parse_parent(traceparent: str, states: Iterable[str] = ()) -> Parent | None:
    """The caller's span out of its headers; None where `traceparent` is not valid: then a new trace begins.

    `states` are the values of all `tracestate` headers, in their order; too long ones are dropped as a whole.
    """
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id or version == _NO_VERSION or (version == _VERSION_0 and more):
        return None
    state = ",".join(states)
    if len(state) > MAX_STATE_CHARACTERS:
        state = ""
    return Parent(SpanContext(trace_id, span_id, state), bool(int(flags, 16) & _SAMPLED))


class Sampler:
    """Keeps what the caller keeps, and of requests that begin a trace the given share."""

    def __init__(self, ratio: float) -> None:
        """`ratio` is from 0, none, to 1, all."""
        self._ratio = ratio

    def trace(self, parent: Parent | None) -> RequestTrace | None:
        """The request's place in its trace; None where that is not kept."""
        if parent is not None:
            return RequestTrace(parent.context.child(), parent.context) if parent.sampled else None
        if _random.random() < self._ratio:
            return RequestTrace(new_root(), None)
        return None


def _identifier(bits: int) -> int:
    while not (identifier := _random.getrandbits(bits)):
        pass
    return identifier
