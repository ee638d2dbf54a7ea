"""Spans on their way to a collector: one that listens, one that refuses, one that is not there."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.otlp_collector import Collector, attributes, collecting
from tests.service.fakes import MLP

from gatefuse.frontend.telemetry import Observer, otlp
from gatefuse.frontend.telemetry.batch_trace import BatchRecord
from gatefuse.frontend.telemetry.otlp import SpanExport
from gatefuse.frontend.telemetry.spans import Address
from gatefuse.trace_context import BatchTrace, Sampler, SpanContext, new_root

ADDRESS = Address("127.0.0.1", 8001)
NOBODY = "http://127.0.0.1:9"
SENT_S = 10.0


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def _ask(export: SpanExport, requests: int = 1) -> None:
    observer = Observer()
    observer.sampler = Sampler(1.0)
    observer.add(export.request_ended)
    for _ in range(requests):
        observer.ended(observer.began("ModelInfer", ()), "OK", "ok")


def test_spans_arrive_with_the_clocks_of_the_world(collector: Collector) -> None:
    begun_ns = time.time_ns()
    export = SpanExport(collector.url, ADDRESS)
    _ask(export, 3)
    export.close(SENT_S)
    assert len(collector.spans) == 3
    for span in collector.spans:
        times = (begun_ns, span.start_time_unix_nano, span.end_time_unix_nano, time.time_ns())
        assert times[1] <= times[2]
        assert times[0] - 1_000_000 <= times[1]
        assert times[2] <= times[3] + 1_000_000
        assert span.kind == span.SPAN_KIND_SERVER
        assert not span.parent_span_id


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_a_base_url_or_the_whole(collector: Collector, path: str) -> None:
    export = SpanExport(collector.url + path, ADDRESS)
    _ask(export)
    export.close(SENT_S)
    assert len(collector.spans) == 1


def test_the_environment_may_say_where_and_who(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=here")
    export = SpanExport(None, ADDRESS)
    _ask(export)
    export.close(SENT_S)
    (received,) = collector.received
    resource = attributes(received.resource)
    assert (resource["service.name"], resource["deployment.environment.name"]) == (
        "gatefuse",
        "here",
    )
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    export = SpanExport(None, ADDRESS)
    _ask(export)
    export.close(SENT_S)
    assert attributes(collector.received[1].resource)["service.name"] == "other"


def test_a_batch_links_to_more_requests_than_the_sdk_allows(collector: Collector) -> None:
    members = tuple(new_root() for _ in range(300))
    root = SpanContext(2**127 + 5, 2**63 + 7)
    record = BatchRecord(
        trace=BatchTrace(root, members, 1.0),
        model=MLP,
        layer=0,
        rows=300,
        requests=300,
        trigger="full",
        replica="worker-0",
        device="cpu",
        outcome="lost",
        done=None,
        call_s=(1.0, 2.0),
        ended_s=2.0,
    )
    export = SpanExport(collector.url, ADDRESS)
    export.batch_ended(record)
    export.close(SENT_S)
    (batch,) = collector.named("batch")
    assert batch.trace_id == root.trace_id.to_bytes(16, "big")
    linked = {(link.trace_id, link.span_id) for link in batch.links}
    assert linked == {
        (m.trace_id.to_bytes(16, "big"), m.span_id.to_bytes(8, "big")) for m in members
    }
    assert batch.dropped_links_count == 0


@pytest.mark.parametrize("status", [None, 503, 400])
def test_what_is_not_taken_is_counted_and_keeps_nobody(
    status: int | None, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = status or 200
    export = SpanExport(NOBODY if status is None else collector.url, ADDRESS)
    _ask(export, 7)
    begun_s = time.monotonic()
    export.flush()
    assert time.monotonic() - begun_s < 0.5
    export.close(0.3)
    assert time.monotonic() - begun_s < 5.0
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == ["7 spans were dropped: the collector did not take them"]


def test_no_more_wait_than_may(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    export = SpanExport(NOBODY, ADDRESS)
    monkeypatch.setattr(otlp, "MAX_WAITING", 10)
    _ask(export, 25)
    export.flush()
    assert "15 spans were dropped" in caplog.text
    export.close(0.1)
    assert "10 spans were dropped" in caplog.text


def test_off_imports_nothing_of_it() -> None:
    program = """
import sys
from gatefuse.frontend import process
from gatefuse.frontend import servicer
from gatefuse.worker import process
from gatefuse.frontend.telemetry import listeners
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
