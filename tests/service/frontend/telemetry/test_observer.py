"""What a client is told of its request, and what listeners are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.service.bed import TestBed
from tests.service.fakes import DEVICE_S
from tests.service.frontend.rpc.test_stream import Stream

from gatefuse.frontend.telemetry import Exchange, Observer
from gatefuse.frontend.telemetry.request_ids import is_accepted, new_request_id
from gatefuse.trace_context import Sampler

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")
COST_KEYS = {"x-request-id", "gatefuse-queue-us", "gatefuse-device-us", "gatefuse-batch-rows"}


class Heard:
    """What was known of each exchange while its listeners were called."""

    def __init__(self, observer: Observer) -> None:
        self.exchanges: list[Exchange] = []
        self.facts: list[tuple[str, str, str, str]] = []
        self.had_job: list[bool] = []
        observer.add(self)

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.facts.append((exchange.method, exchange.code, exchange.outcome, exchange.reason))
        self.had_job.append(exchange.job is not None)

    async def all(self, count: int = 1) -> list[Exchange]:
        """So many, once they have ended: a caller may have its answer, or its error, a moment before."""
        await _until(lambda: len(self.exchanges) >= count)
        return self.exchanges


@pytest.fixture
def heard(bed: TestBed) -> Heard:
    return Heard(bed.servicer.catalogue.observer)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_names_of_clients(name: str) -> None:
    assert is_accepted(name)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "ä", "a\n", 'a"', "a/b"])
def test_names_that_are_not_passed_on(name: str) -> None:
    assert not is_accepted(name)


def test_our_names_are_such_names_and_no_two_alike() -> None:
    names = [new_request_id() for _ in range(100)]
    assert all(map(is_accepted, names))
    assert len(set(names)) == 100


@pytest.mark.asyncio
async def test_a_client_that_asks_is_told_what_its_request_cost(bed: TestBed, heard: Heard) -> None:
    bed.worker()
    call = bed.infer(metadata=(("x-request-id", "my.id-1"),))
    await call
    told = dict(await call.trailing_metadata())
    assert set(told) == COST_KEYS
    assert told["x-request-id"] == (await heard.all())[0].request_id == "my.id-1"
    assert told["gatefuse-device-us"] == str(round(DEVICE_S * 1e6))
    assert told["gatefuse-batch-rows"] == "2"
    assert int(told["gatefuse-queue-us"]) >= 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("metadata", "created"),
    [
        ((TRACEPARENT,), True),
        ((("x-request-id", "no such name!"),), True),
        ((), False),
    ],
)
async def test_others_get_a_name_or_hear_nothing(
    bed: TestBed, metadata: Any, created: bool
) -> None:
    bed.worker()
    call = bed.infer(metadata=metadata)
    await call
    told = dict(await call.trailing_metadata())
    assert set(told) == (COST_KEYS if created else set())
    if created:
        assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]+", told["x-request-id"])


@pytest.mark.asyncio
async def test_the_messages_own_id_is_a_name_too(bed: TestBed, heard: Heard) -> None:
    bed.worker()
    await bed.infer(id="seven")
    await bed.infer(id="seven", metadata=(("x-request-id", "eight"),))
    await bed.infer(id="not a name")
    names = [exchange.request_id for exchange in await heard.all(3)]
    assert names[:2] == ["seven", "eight"]
    assert is_accepted(names[2])


@pytest.mark.asyncio
async def test_whoever_is_refused_gets_a_name_to_ask_about(bed: TestBed, heard: Heard) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bed.infer()  # no worker has connected
    told = dict(caught.value.trailing_metadata())
    assert told["x-request-id"] == (await heard.all())[0].request_id
    assert "grpc-retry-pushback-ms" in told
    assert "gatefuse-batch-rows" not in told
    assert heard.facts == [("ModelInfer", "UNAVAILABLE", "shed", "no_replica")]


@pytest.mark.asyncio
async def test_every_end_is_heard_once(bed: TestBed, heard: Heard) -> None:
    worker = bed.worker(eager=False)
    with pytest.raises(grpc.aio.AioRpcError):
        await bed.infer(model_name="none")
    await heard.all()
    assert heard.facts.pop() == ("ModelInfer", "NOT_FOUND", "client", "model")
    with pytest.raises(grpc.aio.AioRpcError):
        await bed.infer(timeout=0.05)
    await _until(lambda: bool(heard.facts))
    assert heard.facts.pop() == ("ModelInfer", "DEADLINE_EXCEEDED", "shed", "deadline")
    worker.finish()
    worker.got_batch.clear()
    call = bed.infer()
    await worker.got_batch.wait()
    call.cancel()
    await _until(lambda: bool(heard.facts))
    assert heard.facts == [("ModelInfer", "CANCELLED", "client", "")]


@pytest.mark.asyncio
async def test_rows_are_let_go_once_all_have_heard(bed: TestBed, heard: Heard) -> None:
    bed.worker()
    await bed.infer()
    (exchange,) = await heard.all()
    assert heard.had_job == [True]
    assert exchange.job is None


@pytest.mark.asyncio
async def test_each_request_of_a_stream_is_an_exchange_of_the_streams_trace(
    bed: TestBed, heard: Heard
) -> None:
    bed.worker()
    bed.servicer.catalogue.observer.sampler = Sampler(0.0)
    stream = Stream(bed, **dict([TRACEPARENT]))
    for first in (3, 5):
        await stream.ask(first)
        await stream.answer()
    await stream.call.done_writing()
    assert not await stream.rest()
    await heard.all(2)
    assert heard.facts == 2 * [("ModelStreamInfer", "OK", "ok", "")]
    assert [exchange.request_id for exchange in heard.exchanges] == ["3", "5"]
    traces = [exchange.trace for exchange in heard.exchanges]
    assert [trace and trace.context.trace for trace in traces] == [TRACE, TRACE]
    assert len({trace and trace.context.span_id for trace in traces}) == 2


@pytest.mark.parametrize("sampled", [True, False])
def test_a_trace_that_is_not_kept_still_has_its_name(sampled: bool) -> None:
    observer = Observer()
    observer.sampler = Sampler(1.0)
    header = TRACEPARENT[1] if sampled else TRACEPARENT[1][:-1] + "0"
    exchange = observer.began("ModelInfer", (("traceparent", header),))
    assert exchange.trace_id == TRACE
    assert (exchange.trace is not None) is sampled


@pytest.mark.asyncio
async def test_a_listener_that_fails_fails_no_request(
    bed: TestBed, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(exchange: Exchange) -> None:
        raise RuntimeError("a bug")

    bed.worker()
    bed.servicer.catalogue.observer.add(fail)
    await bed.infer()
    await heard.all()
    assert heard.facts == [("ModelInfer", "OK", "ok", "")]
    assert "RuntimeError: a bug" in caplog.text


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - gRPC tells nobody when a handler has ended
            await asyncio.sleep(0.005)
