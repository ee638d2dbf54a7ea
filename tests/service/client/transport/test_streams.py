"""Both streams against the fake server in another process, whose answers overtake each other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError, Result

Array = NDArray[np.float32]


@pytest.fixture
def client(fake_url: str) -> Iterator[Client]:
    with Client(fake_url, timeout_s=10) as client:
        yield client


@pytest_asyncio.fixture
async def aio_client(fake_url: str) -> AsyncIterator[AioClient]:
    async with AioClient(fake_url, timeout_s=10) as client:
        yield client


def _arrays(count: int) -> list[Array]:
    return [np.full((number % 5 + 1, 7), number, np.float32) for number in range(count)]


def _check(arrays: list[Array], results: list[Result]) -> None:
    for x, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.output, x, strict=True)
        assert result.cost.batch_rows == 2 * len(x)


def test_many_in_flight_and_each_gets_its_own(client: Client) -> None:
    arrays = _arrays(200)
    with client.stream() as stream:
        futures = [stream.infer("identity", x) for x in arrays]
        _check(arrays, [future.result(10) for future in futures])


def test_answers_come_as_they_are_ready(client: Client) -> None:
    order: list[Future[Result]] = []
    with client.stream() as stream:
        futures = [stream.infer("identity", x) for x in _arrays(14)]
        for future in futures:
            future.add_done_callback(order.append)
    assert set(order) == set(futures)
    assert order != futures


def test_leaving_waits_for_what_is_due(client: Client) -> None:
    with client.stream() as stream:
        futures = [stream.infer("identity", x) for x in _arrays(20)]
    assert all(future.done() for future in futures)
    _check(_arrays(20), [future.result(0) for future in futures])


def test_names_outputs_and_datatypes_as_without_a_stream(client: Client) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    inputs = {"g": x, "u": x}
    with client.stream() as stream:
        streamed = stream.infer("gate", inputs, outputs=["t"], datatype="BF16").result(10)
    single = client.infer("gate", inputs, outputs=["t"], datatype="BF16")
    assert list(streamed.outputs) == ["t"]
    np.testing.assert_array_equal(streamed.output, single.output, strict=True)


def test_one_refusal_is_one_callers(client: Client) -> None:
    x = np.ones((1, 4), np.float32)
    with client.stream() as stream:
        before = stream.infer("identity", x)
        refused = stream.infer("absent", {"x": x})
        after = stream.infer("identity", x)
        with pytest.raises(InferenceError, match="NOT_FOUND: no model 'absent'"):
            refused.result(10)
        _check([x, x], [before.result(10), after.result(10)])


def test_status_that_the_server_does_not_tell_is_unknown(client: Client) -> None:
    with client.stream() as stream, pytest.raises(InferenceError) as caught:
        stream.infer("untold", {"x": np.ones((1, 4), np.float32)}).result(10)
    assert caught.value.code is grpc.StatusCode.UNKNOWN


def test_broken_stream_tells_everybody_and_opens_again(client: Client) -> None:
    x = np.ones((1, 256), np.float32)
    with client.stream() as stream:
        waiting = stream.infer("slow", x, layer=0)
        breaking = stream.infer("breaker", {"x": x})
        for future in (waiting, breaking):
            with pytest.raises(InferenceError, match="ended before the answer: the stream breaks"):
                future.result(10)
        _check([x], [stream.infer("identity", x).result(10)])


def test_an_answer_that_takes_too_long(client: Client) -> None:
    x = np.ones((1, 256), np.float32)
    begun_s = time.monotonic()
    with client.stream() as stream:
        late = [stream.infer("slow", x, layer=0, timeout_s=limit) for limit in (5.0, 0.6, 0.2)]
        in_time = stream.infer("identity", x, timeout_s=5)
        for future, limit_s in ((late[2], 0.2), (late[1], 0.6)):
            with pytest.raises(InferenceError, match=f"within {limit_s} s") as caught:
                future.result(10)
            assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert limit_s < time.monotonic() - begun_s < limit_s + 1
        _check([x], [in_time.result(0)])
        assert late[0].cancel()
    assert time.monotonic() - begun_s < 4


def test_the_clients_own_timeout_holds_on_its_streams(fake_url: str) -> None:
    x = np.ones((1, 256), np.float32)
    with (
        Client(fake_url, timeout_s=0.3) as client,
        client.stream() as stream,
        pytest.raises(InferenceError, match="DEADLINE_EXCEEDED"),
    ):
        stream.infer("slow", x, layer=0).result(10)


def test_options_that_there_are_not(client: Client) -> None:
    x = np.ones((1, 4), np.float32)
    with client.stream() as stream:
        with pytest.raises(TypeError, match="unexpected keyword argument 'layr'"):
            stream.infer("identity", x, layr=3)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="positive number of seconds, not 0"):
            stream.infer("identity", x, timeout_s=0)
        _check([x], [stream.infer("identity", x, parameters={"priority": 1}).result(10)])


def test_exception_gives_up_what_is_due(client: Client) -> None:
    futures: list[Future[Result]] = []

    def fail_in_a_stream() -> None:
        with client.stream() as stream:
            futures.append(stream.infer("slow", np.ones((1, 256), np.float32), layer=0))
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        fail_in_a_stream()
    with pytest.raises(InferenceError) as caught:
        futures[0].result(10)
    assert caught.value.code is grpc.StatusCode.CANCELLED


def test_closed_stream_says_so_and_leaves_no_thread(client: Client) -> None:
    with client.stream() as stream:
        stream.infer("identity", np.ones((1, 4), np.float32)).result(10)
    with pytest.raises(RuntimeError, match="closed"):
        stream.infer("identity", np.ones((1, 4), np.float32))
    assert not [each for each in threading.enumerate() if each.name.startswith("gatefuse-stream")]


def test_cancelled_future_is_nobody_elses_trouble(client: Client) -> None:
    x = np.ones((1, 4), np.float32)
    with client.stream() as stream:
        assert stream.infer("identity", x).cancel()
        _check([x], [stream.infer("identity", x).result(10)])


def test_one_stream_from_many_threads(client: Client) -> None:
    arrays = _arrays(200)
    with client.stream() as stream, ThreadPoolExecutor(8) as pool:
        _check(arrays, list(pool.map(lambda x: stream.infer("identity", x).result(10), arrays)))


def test_nobody_there() -> None:
    with Client("127.0.0.1:1", timeout_s=5) as client, client.stream() as stream:
        future = stream.infer("identity", {"x": np.ones((1, 4), np.float32)})
        with pytest.raises(InferenceError) as caught:
            future.result(10)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_asyncio_many_in_flight(aio_client: AioClient) -> None:
    arrays = _arrays(200)
    async with aio_client.stream() as stream:
        results = await asyncio.gather(*(stream.infer("identity", x) for x in arrays))
    _check(arrays, results)


@pytest.mark.asyncio
async def test_asyncio_refusals_and_breaks(aio_client: AioClient) -> None:
    x = np.ones((1, 256), np.float32)
    async with aio_client.stream() as stream:
        absent, good = await asyncio.gather(
            stream.infer("absent", {"x": x}), stream.infer("identity", x), return_exceptions=True
        )
        assert isinstance(absent, InferenceError)
        assert absent.code is grpc.StatusCode.NOT_FOUND
        assert isinstance(good, Result)
        broken = await asyncio.gather(
            stream.infer("slow", {"x": x}, layer=0),
            stream.infer("breaker", {"x": x}),
            return_exceptions=True,
        )
        codes = [error.code for error in broken if isinstance(error, InferenceError)]
        assert codes == [grpc.StatusCode.UNAVAILABLE] * 2
        _check([x], [await stream.infer("identity", x)])


@pytest.mark.asyncio
async def test_asyncio_options_that_there_are_not(aio_client: AioClient) -> None:
    x = np.ones((1, 4), np.float32)
    async with aio_client.stream() as stream:
        with pytest.raises(TypeError, match="unexpected keyword argument 'layr'"):
            await stream.infer("identity", x, layr=3)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="positive number of seconds, not 0"):
            await stream.infer("identity", x, timeout_s=0)
        _check([x], [await stream.infer("identity", x, parameters={"priority": 1})])


@pytest.mark.asyncio
async def test_asyncio_deadlines_and_cancelled_tasks(aio_client: AioClient) -> None:
    x = np.ones((1, 256), np.float32)
    async with aio_client.stream() as stream:
        with pytest.raises(InferenceError) as caught:
            await stream.infer("slow", x, layer=0, timeout_s=0.1)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        task = asyncio.create_task(stream.infer("slow", x, layer=0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        _check([x], [await stream.infer("identity", x)])
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 5, "nobody waits for what was given up"
    with pytest.raises(RuntimeError, match="closed"):
        await stream.infer("identity", x)
