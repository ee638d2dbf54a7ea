"""A collector for tests: takes spans over OTLP/HTTP as a real one does, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


def attributes(message: Any) -> dict[str, str | int | float]:
    """The attributes of a span or a resource."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in message.attributes
    }


class Collector(ThreadingHTTPServer):
    """Listens on a free port of the loopback; `status` is what it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.received: list[ResourceSpans] = []

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        return [
            span for each in self.received for scope in each.scope_spans for span in scope.spans
        ]

    def named(self, name: str) -> list[Span]:
        """The spans with a name that ends so."""
        return [span for span in self.spans if span.name.endswith(name)]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        """Takes spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.status if self.path == "/v1/traces" else 404
        if status == 200:
            self.server.received += ExportTraceServiceRequest.FromString(body).resource_spans
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not of interest."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector, until the end of the block."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
