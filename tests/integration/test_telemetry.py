"""A served request seen from outside: its spans at a collector, its line in the log, its exemplar, its cost."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.integration.harness import Service, Start, wait_until
from tests.otlp_collector import Collector, attributes, collecting

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

pytestmark = pytest.mark.slow

COLUMNS = 8
MODEL = {
    "name": "double",
    "kind": "elementwise",
    "expression": "x * 2",
    "columns": COLUMNS,
    "dtype": "fp32",
    "backend": "eager",
}
CONFIG = {"device": "cpu", "workers": 1, "models": [MODEL]}
# Its largest batch keeps the worker busy for long enough that what comes meanwhile shares the next.
SLOW_COLUMNS, SLOW_ROWS = 512, 1024
SLOW_MODEL = {
    "name": "slow",
    "random": {"hidden": SLOW_COLUMNS, "intermediate": 4 * SLOW_COLUMNS},
    "dtype": "fp32",
    "backend": "eager",
    "batching": {"max_batch_rows": SLOW_ROWS},
}
SERVER = "GRPCInferenceService/ModelInfer"
NOBODY = "http://127.0.0.1:9"

Metadata = Sequence[tuple[str, str]]


def _traceparent(*, sampled: bool) -> tuple[str, tuple[str, str]]:
    """A new trace's identifier, and the header that names it."""
    trace = secrets.token_hex(16)
    return trace, ("traceparent", f"00-{trace}-{secrets.token_hex(8)}-0{int(sampled)}")


def _message(rows: int) -> pb.ModelInferRequest:
    x = np.arange(rows * COLUMNS, dtype=np.float32).reshape(rows, COLUMNS)
    return infer_request("double", {"x": Rows(x.tobytes(), x.shape, Datatype.FP32)})


def _slow_message(rows: int) -> pb.ModelInferRequest:
    x = np.ones((rows, SLOW_COLUMNS), np.float32)
    return infer_request("slow", {"hidden_states": Rows(x.tobytes(), x.shape, Datatype.FP32)})


def _call(channel: grpc.aio.Channel, message: pb.ModelInferRequest, metadata: Metadata = ()) -> Any:
    return channel.unary_unary(
        method("ModelInfer"),
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )(message, metadata=tuple(metadata), timeout=30)


async def _ask(url: str, metadata: Metadata) -> dict[str, str]:
    """Asks once; returns the trailing metadata."""
    message = _message(1)
    async with grpc.aio.insecure_channel(url) as channel:
        call = _call(channel, message, metadata)
        answer = await call
        x = np.frombuffer(message.raw_input_contents[0], np.float32)
        assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), 2 * x)
        return {str(key): str(value) for key, value in await call.trailing_metadata()}


async def _ask_three(url: str) -> None:
    """Three requests while the worker is busy with another, which nobody traces."""
    async with grpc.aio.insecure_channel(url) as channel:
        await channel.channel_ready()
        busy = _call(channel, _slow_message(SLOW_ROWS))
        await asyncio.sleep(0.02)
        headers = [_traceparent(sampled=True)[1] for _ in range(3)]
        three = [
            _call(channel, _slow_message(rows), [header])
            for rows, header in zip((1, 2, 4), headers, strict=True)
        ]
        await asyncio.gather(busy, *three)


def _ask_one(service: Service, metadata: Metadata = ()) -> dict[str, str]:
    return asyncio.run(_ask(service.url, metadata))


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def service(start: Start, collector: Collector) -> Service:
    """Keeps only what its callers trace, and every request is slow enough for a line in the log."""
    tracing = {"endpoint": collector.url, "sample_ratio": 0.0}
    changes = {"tracing": tracing, "log_format": "json", "slow_request_ms": 1e-3}
    return start({**CONFIG, **changes, "models": [MODEL, SLOW_MODEL]})


def _batch_of_three(service: Service, collector: Collector) -> Span:
    """Asks three at once, a few times, some of which share a batch; returns its span."""
    for _ in range(5):
        asyncio.run(_ask_three(service.url))

    def found() -> list[Span]:
        return [span for span in collector.named("batch") if len(span.links) == 3]

    return wait_until(found, 30, "a batch of three requests")[0]


def test_a_batch_of_three_requests(service: Service, collector: Collector) -> None:
    batch = _batch_of_three(service, collector)
    wait_until(lambda: len(_servers_of(collector, batch)) == 3, 30, "their spans")
    servers = _servers_of(collector, batch)
    assert not batch.parent_span_id
    assert {(link.trace_id, link.span_id) for link in batch.links} == {
        (span.trace_id, span.span_id) for span in servers
    }
    assert len({span.trace_id for span in (batch, *servers)}) == 4
    own = attributes(batch)
    assert (own["gatefuse.rows"], own["gatefuse.requests"]) == (7, 3)
    assert (own["gatefuse.replica"], own["gatefuse.device"]) == ("worker-0", "cpu:0")
    children = _children_of(collector, batch)
    assert set(children) == {"dispatch", "device"}
    for child in children.values():
        assert batch.start_time_unix_nano <= child.start_time_unix_nano
        assert child.end_time_unix_nano <= batch.end_time_unix_nano
    for server in servers:
        assert [(link.trace_id, link.span_id) for link in server.links] == [
            (batch.trace_id, batch.span_id)
        ]
        phases = _children_of(collector, server)
        assert set(phases) == {"decode", "queue", "encode"}
        assert attributes(server)["rpc.response.status_code"] == "OK"


def _servers_of(collector: Collector, batch: Span) -> list[Span]:
    members = {link.span_id for link in batch.links}
    return [span for span in collector.named(SERVER) if span.span_id in members]


def _children_of(collector: Collector, parent: Span) -> dict[str, Span]:
    """By their names."""
    return {
        span.name: span
        for span in collector.spans
        if (span.trace_id, span.parent_span_id) == (parent.trace_id, parent.span_id)
    }


def test_the_callers_flag_decides(service: Service, collector: Collector) -> None:
    kept, keep = _traceparent(sampled=True)
    dropped, drop = _traceparent(sampled=False)
    for metadata in ([drop], [], [keep, ("tracestate", "vendor=7")]):
        _ask_one(service, metadata)

    def server() -> list[Span]:
        return [span for span in collector.named(SERVER) if span.trace_id.hex() == kept]

    (span,) = wait_until(server, 30, "the kept span")
    assert span.parent_span_id.hex() == keep[1].split("-")[2]
    assert span.trace_state == "vendor=7"
    assert dropped not in {span.trace_id.hex() for span in collector.spans}


def test_an_exemplar_leads_to_the_trace(service: Service) -> None:
    trace, header = _traceparent(sampled=True)
    _ask_one(service, [header])

    def found() -> bool:
        wanted = "application/openmetrics-text; version=1.0.0"
        request = urllib.request.Request(service.metrics_url, headers={"Accept": wanted})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        return trace in {
            sample.exemplar.labels["trace_id"]
            for family in families
            for sample in family.samples
            if sample.exemplar
        }

    wait_until(found, 30, "the exemplar")
    with urllib.request.urlopen(service.metrics_url, timeout=30) as answer:
        assert trace not in answer.read().decode()


def test_every_line_is_json_and_requests_can_be_found(service: Service) -> None:
    trace, header = _traceparent(sampled=False)
    name = f"test-{secrets.token_hex(4)}"

    def lines() -> list[dict[str, Any]]:
        # The other tests may have used up the lines of these ten seconds.
        told = _ask_one(service, [header, ("x-request-id", name)])
        assert (told["x-request-id"], told["gatefuse-batch-rows"]) == (name, "1")
        time.sleep(0.2)
        found = [json.loads(line) for line in service.stderr.splitlines()]
        return found if any(line.get("request_id") == name for line in found) else []

    found = wait_until(lines, 30, "the request's line")
    line = next(line for line in found if line.get("request_id") == name)
    assert (line["process"], line["level"], line["trace_id"]) == ("frontend-0", "INFO", trace)
    assert (line["model"], line["rows"], line["code"], line["reason"]) == (
        "double",
        1,
        "OK",
        "slow",
    )
    assert line["duration_ms"] > line["device_ms"] > 0
    assert {"worker-0", "frontend-0"} <= {line["process"] for line in found}


def test_a_drain_sends_what_is_left(start: Start) -> None:
    with collecting() as collector:
        tracing = {"endpoint": collector.url, "sample_ratio": 1.0}
        service = start({**CONFIG, "tracing": tracing})
        _ask_one(service)
        service.stop()
        assert len(collector.named(SERVER)) == len(collector.named("device")) == 1


def test_no_collector_costs_no_request(start: Start) -> None:
    tracing = {"endpoint": NOBODY, "sample_ratio": 1.0}
    service = start({**CONFIG, "tracing": tracing, "log_format": "json"})
    for _ in range(20):
        _ask_one(service)
    begun_s = time.monotonic()
    service.stop()
    assert time.monotonic() - begun_s < 20
    assert "spans were dropped: the collector did not take them" in service.log
