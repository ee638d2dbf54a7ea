"""The spans of requests and batches: names, attributes, times and links, before a fake worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.service.fakes import MLP, MODELS, FakeWorker, exact_rows, infer_request

from gatefuse.errors import ServiceError
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.telemetry import BatchTraces, Exchange, Observer
from gatefuse.frontend.telemetry.batch_trace import BatchRecord
from gatefuse.frontend.telemetry.spans import Address, Span, batch_spans, request_spans
from gatefuse.link.messages import Status
from gatefuse.trace_context import Sampler
from gatefuse_protos import open_inference_pb2 as pb

ADDRESS = Address("host.example", 8001)
SAMPLED = (("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)
NOT_SAMPLED = ((SAMPLED[0][0], SAMPLED[0][1][:-1] + "0"),)


class Bed:
    """A dispatcher whose requests and batches are followed, and a worker that waits to be told."""

    def __init__(self, slots: int = 1) -> None:
        self.batches: list[BatchRecord] = []
        self.requests: list[list[Span]] = []
        self.observer = Observer()
        self.observer.sampler = Sampler(0.0)
        self.observer.add(self._ended)
        self.dispatcher = Dispatcher(asyncio.get_running_loop())
        self.dispatcher.batch_traces = BatchTraces(self.batches.append)
        self.worker = FakeWorker(self.dispatcher, MODELS, slots=slots)
        self.worker.connect()

    def ask(self, rows: int, metadata: Sequence[tuple[str, str]] = SAMPLED) -> asyncio.Task[str]:
        return asyncio.create_task(self._ask(rows, metadata))

    async def _ask(self, rows: int, metadata: Sequence[tuple[str, str]]) -> str:
        exchange = self.observer.began("ModelInfer", metadata)
        deadline_s = asyncio.get_running_loop().time() + 60
        code, reason = "OK", ""
        try:
            await self.dispatcher.infer(
                infer_request(MLP, exact_rows(0, rows)), deadline_s, exchange
            )
            exchange.encode_s = asyncio.get_running_loop().time()
        except ServiceError as error:
            code, reason = error.status.name, error.reason
        self.observer.ended(exchange, code, "ok", reason)
        return code

    def _ended(self, exchange: Exchange) -> None:
        if exchange.trace is not None:
            self.requests.append(request_spans(exchange, exchange.trace, ADDRESS))


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_the_server_span_keeps_to_the_stable_conventions() -> None:
    bed = Bed()
    task = bed.ask(3)
    await _turns()
    bed.worker.finish()
    await task
    ((server, *children),) = bed.requests
    assert server.name == "inference.GRPCInferenceService/ModelInfer"
    assert server.is_server
    assert server.parent_is_remote
    assert {k: v for k, v in server.attributes.items() if not k.startswith("gatefuse.")} == {
        "rpc.system.name": "grpc",
        "rpc.method": "inference.GRPCInferenceService/ModelInfer",
        "rpc.response.status_code": "OK",
        "server.address": "host.example",
        "server.port": 8001,
    }
    own = {k.removeprefix("gatefuse."): v for k, v in server.attributes.items()}
    assert (own["model"], own["rows"], own["device_seconds"]) == ("ffn", 3, 0.25)
    assert [child.name for child in children] == ["decode", "queue", "encode"]
    assert {child.parent for child in children} == {server.context}
    times = [time for child in children for time in (child.start_s, child.end_s)]
    assert times == sorted(times)
    assert (server.start_s, server.end_s) == (times[0], times[-1])


@pytest.mark.asyncio
async def test_a_batch_of_three_and_its_requests_link_to_each_other() -> None:
    bed = Bed()
    first = bed.ask(1)  # occupies the worker: the next three share a batch
    await _turns()
    tasks = [bed.ask(rows) for rows in (1, 2, 3)]
    await _turns()
    bed.worker.finish()
    await _turns()
    bed.worker.finish()
    await asyncio.gather(first, *tasks)
    batch, dispatch, device = batch_spans(bed.batches[1])
    servers = [spans[0] for spans in bed.requests[1:]]
    assert batch.links == tuple(server.context for server in servers)
    assert all(server.links == (batch.context,) for server in servers)
    assert batch.parent is None
    assert batch.context.trace_id not in {server.context.trace_id for server in servers}
    assert dispatch.parent == device.parent == batch.context
    own = {k.removeprefix("gatefuse."): v for k, v in batch.attributes.items()}
    assert (own["rows"], own["requests"], own["row_bucket"], own["padding_rows"]) == (6, 3, 6, 0)
    assert (own["replica"], own["trigger"], own["outcome"]) == ("worker-0", "idle", "ok")
    assert own["device"] == "cpu:0"  # as metrics call it
    assert batch.start_s <= dispatch.end_s <= batch.end_s


@pytest.mark.asyncio
async def test_only_requests_that_are_kept_are_linked() -> None:
    bed = Bed()
    first = bed.ask(1, NOT_SAMPLED)
    await _turns()
    tasks = [bed.ask(1, NOT_SAMPLED), bed.ask(2), bed.ask(1, ())]
    await _turns()
    bed.worker.finish()
    await _turns()
    bed.worker.finish()
    await asyncio.gather(first, *tasks)
    (record,) = bed.batches
    assert (record.requests, record.rows) == (3, 4)
    ((server, *_),) = bed.requests
    assert record.trace.members == (server.context,)


@pytest.mark.asyncio
async def test_a_large_request_links_to_each_of_its_batches() -> None:
    bed = Bed(slots=3)
    task = bed.ask(2 * MLP.max_batch_rows + 1)
    await _turns()
    for _ in range(3):
        bed.worker.finish()
    await task
    assert bed.requests[0][0].links == tuple(record.trace.context for record in bed.batches)
    assert len(bed.batches) == 3


@pytest.mark.asyncio
async def test_a_batch_that_failed_is_an_error_without_device_time() -> None:
    bed = Bed()
    task = bed.ask(1)
    await _turns()
    bed.worker.finish(Status.FAILED)
    assert await task == "INTERNAL"
    batch, dispatch = batch_spans(bed.batches[0])
    assert (batch.error, dispatch.name) == ("failed", "dispatch")
    ((server, *_),) = bed.requests
    assert (server.error, server.attributes["error.type"]) == ("INTERNAL", "INTERNAL")


@pytest.mark.asyncio
async def test_a_listener_that_fails_costs_no_rows(caplog: pytest.LogCaptureFixture) -> None:
    def fail(record: BatchRecord) -> None:
        raise RuntimeError("a bug")

    bed = Bed()
    bed.dispatcher.batch_traces = BatchTraces(fail)
    task = bed.ask(1)
    await _turns()
    bed.worker.finish()
    assert await task == "OK"
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.asyncio
async def test_rows_of_a_worker_that_died_are_in_two_batches() -> None:
    bed = Bed()
    task = bed.ask(1)
    await _turns()
    bed.worker.die()
    other = FakeWorker(bed.dispatcher, MODELS, eager=True)
    other.connect()
    assert await task == "OK"
    assert [record.outcome for record in bed.batches] == ["lost", "ok"]
    links = tuple(record.trace.context for record in bed.batches)
    assert bed.requests[0][0].links == links


@pytest.mark.asyncio
async def test_a_request_that_was_refused_is_the_clients_error_or_the_servers() -> None:
    bed = Bed()
    bed.worker.die()
    assert await bed.ask(1) == "UNAVAILABLE"
    exchange = bed.observer.began("ModelInfer", SAMPLED)
    message = pb.ModelInferRequest(model_name="llama-ffn")
    message.parameters["layer"].int64_param = 99
    exchange.asks(message)
    bed.observer.ended(exchange, "INVALID_ARGUMENT", "client", "shape")
    (shed, *_), (invalid, *phases) = bed.requests
    assert invalid.attributes["gatefuse.model"] == "llama-ffn"
    assert invalid.attributes["gatefuse.layer"] == 99
    assert "gatefuse.rows" not in invalid.attributes
    assert (shed.error, shed.attributes["gatefuse.reason"]) == ("UNAVAILABLE", "no_replica")
    assert (invalid.error, invalid.attributes["gatefuse.reason"]) == ("", "shape")
    assert "error.type" not in invalid.attributes
    assert phases == []
