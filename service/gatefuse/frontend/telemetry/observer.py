"""The request path's one hook."""

import logging
import time
from collections.abc import Callable, Iterable

from gatefuse.frontend.telemetry.exchange import ID_KEY, Exchange
from gatefuse.trace_context import TRACEPARENT, TRACESTATE, Sampler, parse_parent

log = logging.getLogger(__name__)

Listener = Callable[[Exchange], None]
Metadata = Iterable[tuple[str, str | bytes]]


class Observer:
    """Follows each inference request from its first byte to its status, for microseconds; fails none."""

    def __init__(self) -> None:
        """Nobody listens, and no trace is kept."""
        self._listeners: tuple[Listener, ...] = ()
        self.sampler: Sampler | None = None

    def add(self, listener: Listener) -> None:
        """From now on `listener` is called with each exchange that has ended."""
        self._listeners += (listener,)

    def began(self, method: str, metadata: Metadata | None) -> Exchange:
        """A request of `method` begins; `metadata` is what its client sent with the call."""
        exchange = Exchange(method)
        traceparent = ""
        for key, value in metadata or ():
            if key == ID_KEY and isinstance(value, str):
                exchange.asked = True
                exchange.name(value)
            elif key == TRACEPARENT and isinstance(value, str):
                exchange.asked = True
                traceparent = value
        if traceparent:
            states = [value for key, value in metadata or () if key == TRACESTATE]
            exchange.parent = parse_parent(traceparent, [s for s in states if isinstance(s, str)])
        if self.sampler is not None:
            exchange.trace = self.sampler.trace(exchange.parent)
        return exchange

    def ended(self, exchange: Exchange, code: str, outcome: str, reason: str = "") -> None:
        """It ended with a status of that name; `outcome` is one of metrics' OUTCOMES."""
        exchange.ended_s = time.monotonic()
        exchange.code, exchange.outcome, exchange.reason = code, outcome, reason
        try:
            for listener in self._listeners:
                listener(exchange)
        except Exception:
            log.exception("a request could not be told of")  # which is no reason to fail it
        # It holds the request's rows, and gRPC may hold the frames of a call that failed for long.
        exchange.job = None
