"""Spans to an OpenTelemetry collector, over OTLP/HTTP. The only module that knows OpenTelemetry's packages.

What is to be exported is noted on the event loop and converted ten times a second; a thread of the SDK sends it.
Nothing waits for the collector: what it does not take in time is dropped and counted.
"""

import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from gatefuse import __version__
from gatefuse.frontend.telemetry import spans
from gatefuse.frontend.telemetry.batch_trace import BatchRecord
from gatefuse.frontend.telemetry.exchange import Exchange
from gatefuse.frontend.telemetry.spans import Address, Span
from gatefuse.trace_context import SpanContext as OwnContext

log = logging.getLogger(__name__)

PATH = "/v1/traces"
# Spans that wait for the collector: then as many are dropped as come.
MAX_WAITING = 8192
REPORT_S = 10.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class _CountingExporter(SpanExporter):
    """Counts, on the SDK's thread, what another exporter was given and what of it failed."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.taken = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self.taken += len(spans)
            if result is not SpanExportResult.SUCCESS:
                self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()


class SpanExport:
    """Exports the spans of one frontend."""

    def __init__(self, endpoint: str | None, address: Address) -> None:
        """`endpoint` is the collector's base URL, None for what OTEL_EXPORTER_OTLP_ENDPOINT and its kin say.

        `address` is where the service listens. The SDK's own variables hold: OTEL_SERVICE_NAME,
        OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_*, OTEL_EXPORTER_OTLP_*.
        """
        self._address = address
        url = None if endpoint is None else endpoint.rstrip("/").removesuffix(PATH) + PATH
        # What fails is counted, and reported here; the exporter's own lines would come with each attempt.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = _CountingExporter(OTLPSpanExporter(url))
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=MAX_WAITING)
        self._resource = _resource()
        self._scope = InstrumentationScope("gatefuse", __version__, spans.SCHEMA_URL)
        self._pending: list[Span] = []
        self._sent = 0
        self._dropped = 0
        self._reported = 0
        self._report_at_s = 0.0

    def request_ended(self, exchange: Exchange) -> None:
        """Notes the spans of a request, if they are kept."""
        if exchange.trace is not None:
            # Not the exchange itself, which holds the request's rows.
            self._note(spans.request_spans(exchange, exchange.trace, self._address))

    def batch_ended(self, record: BatchRecord) -> None:
        """Notes the spans of a batch."""
        self._note(spans.batch_spans(record))

    def flush(self) -> None:
        """Hands what was noted to the thread that sends it."""
        # The machine's clocks drift against each other, by far less than a span in a tenth of a second.
        epoch_ns = time.time_ns() - time.monotonic_ns()
        for span in self._pending:
            self._processor.on_end(self._readable(span, epoch_ns))
        self._sent += len(self._pending)
        self._pending.clear()
        self._report()

    def close(self, timeout_s: float) -> None:
        """Sends what is left, for so long; blocks. Nothing may be noted any more."""
        self.flush()
        ending = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            self._exporter.shutdown()  # gives up its attempts
        self._dropped += self._sent - self._exporter.taken
        self._report_at_s = 0.0
        self._report()

    def _note(self, made: list[Span]) -> None:
        waiting = self._sent - self._exporter.taken + len(self._pending)
        if waiting + len(made) > MAX_WAITING:
            self._dropped += len(made)
        else:
            self._pending += made

    def _report(self) -> None:
        """Says how many spans were lost, at most every REPORT_S."""
        lost = self._dropped + self._exporter.failed
        now_s = time.monotonic()
        if lost > self._reported and now_s >= self._report_at_s:
            log.warning(
                "%d spans were dropped: the collector did not take them", lost - self._reported
            )
            self._reported, self._report_at_s = lost, now_s + REPORT_S

    def _readable(self, span: Span, epoch_ns: int) -> ReadableSpan:
        status = Status(StatusCode.ERROR, span.error) if span.error else Status()
        parent = span.parent
        return ReadableSpan(
            name=span.name,
            context=_context(span.context),
            parent=None if parent is None else _context(parent, is_remote=span.parent_is_remote),
            resource=self._resource,
            attributes=span.attributes,
            # Made here, not by the SDK's Span, which would cut them at 128.
            links=[Link(_context(link)) for link in span.links],
            kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            status=status,
            start_time=epoch_ns + int(span.start_s * 1e9),
            end_time=epoch_ns + int(span.end_s * 1e9),
            instrumentation_scope=self._scope,
        )


def _context(context: OwnContext, *, is_remote: bool = False) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, is_remote, _SAMPLED, state)


def _resource() -> Resource:
    """What all spans of this process have in common; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before it."""
    ours = {SERVICE_NAME: "gatefuse", SERVICE_VERSION: __version__}
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})
