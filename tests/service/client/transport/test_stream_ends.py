"""How streams end: by the server, by leaving them, by forgetting them; and where nobody listens."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tests.service.either_client import connected
from tests.service.grpc_serving import serving
from tests.service.sharing_server import SharingServer, sharing_server

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError, Result
from gatefuse.client.transport.blocking import Transport
from gatefuse_protos import open_inference_pb2 as pb

Code = grpc.StatusCode
X = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with sharing_server() as server:
        yield server


@contextmanager
def _streaming(behaviour: Callable[[Any, Any], Iterator[bytes]]) -> Iterator[str]:
    """A server whose streams do as they are told; yields HOST:PORT."""
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        behaviour, request_deserializer=pb.ModelInferRequest.FromString
    )
    with serving({"ModelStreamInfer": handler}, threads=16) as url:
        yield url


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("gatefuse-stream")]


def _wait_for_no_thread() -> None:
    end_s = time.monotonic() + 10
    while _threads():
        assert time.monotonic() < end_s, _threads()
        time.sleep(0.01)


def test_where_nobody_listens_each_request_opens_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    open_call = Transport.stream

    def stream(self: Transport, *arguments: Any) -> tuple[Any, int]:
        opened.append(1)
        return open_call(self, *arguments)

    monkeypatch.setattr(Transport, "stream", stream)
    with Client("127.0.0.1:1", timeout_s=30) as client, client.stream() as stream_:
        for _ in range(12):
            error = stream_.infer("m", X).exception(60)
            assert isinstance(error, InferenceError)
            assert error.code is Code.UNAVAILABLE
    assert len(opened) == 12


def test_a_status_that_meets_the_requests_of_an_asyncio_stream() -> None:
    def drain(_: Any, context: Any) -> Iterator[bytes]:
        context.abort(Code.UNAVAILABLE, "the server is draining")
        yield b""

    async def errors(url: str) -> set[str]:
        found: set[str] = set()
        async with AioClient(url, timeout_s=10) as client:
            for _ in range(20):
                async with client.stream() as stream:
                    requests = (stream.infer("m", X) for _ in range(5))
                    found |= set(map(str, await asyncio.gather(*requests, return_exceptions=True)))
        return found

    with _streaming(drain) as url:
        told = asyncio.run(errors(url))
    assert told == {"UNAVAILABLE: the stream ended before the answer: the server is draining"}


@pytest.mark.parametrize("way", ["blocking stream", "asyncio stream"])
def test_an_answer_that_cannot_be_parsed(way: str) -> None:
    def garble(requests: Any, _: Any) -> Iterator[bytes]:
        for _request in requests:
            yield b"\xff\xff\xff"

    with _streaming(garble) as url:
        client = connected(way, url, timeout_s=10)
        for _ in range(2):
            with pytest.raises(InferenceError, match="ended before the answer") as caught:
                client.infer("m", X)
            assert caught.value.code is Code.INTERNAL
        client.end()


def test_leaving_waits_for_answers_that_have_more_time(server: SharingServer) -> None:
    server.delays_s["ModelInfer"] = 1.0
    with Client(server.url, timeout_s=0.2) as client, client.stream() as stream:
        future = stream.infer("m", X, timeout_s=20)
    np.testing.assert_array_equal(future.result(0).output, X["x"] + 1)


@pytest.mark.asyncio
async def test_leaving_an_asyncio_stream_waits_as_well(server: SharingServer) -> None:
    server.delays_s["ModelInfer"] = 1.0
    async with AioClient(server.url, timeout_s=0.2) as client:
        async with client.stream() as stream:
            task = asyncio.create_task(stream.infer("m", X, timeout_s=20))
            await asyncio.sleep(0.05)
        np.testing.assert_array_equal((await task).output, X["x"] + 1)


@pytest.mark.parametrize("delayed", ["ModelInfer", "ModelMetadata"])
def test_leaving_waits_no_more_for_what_is_cancelled(server: SharingServer, delayed: str) -> None:
    with Client(server.url, timeout_s=20) as client:
        stream = client.stream()
        stream.infer("m", X["x"]).result(20)
        server.calls.clear()
        server.delays_s[delayed] = 5.0
        # It is refused, and its model is looked up again.
        future = stream.infer("m", X["x"], outputs=["none"])
        while delayed not in server.calls:
            time.sleep(0.01)
        closing = threading.Thread(target=stream.close, daemon=True)
        begun_s = time.monotonic()
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        assert future.cancel()
        closing.join(20)
        assert time.monotonic() - begun_s < 3


def _forgotten(url: str) -> Future[Result]:
    return Client(url, timeout_s=20).stream().infer("m", X)


def test_a_stream_that_nobody_has_any_more_ends_after_its_answers(server: SharingServer) -> None:
    server.delays_s["ModelInfer"] = 0.3
    future = _forgotten(server.url)
    gc.collect()
    np.testing.assert_array_equal(future.result(20).output, X["x"] + 1)
    _wait_for_no_thread()


def test_a_client_that_was_not_closed_leaves_no_thread(server: SharingServer) -> None:
    before = threading.active_count()
    client = Client(server.url, timeout_s=20)
    stream = client.stream()
    stream.infer("m", X).result(20)
    assert _threads()
    del client, stream
    gc.collect()
    _wait_for_no_thread()
    # Those of gRPC too, save the server's own.
    end_s = time.monotonic() + 10
    while threading.active_count() > before + 1:
        assert time.monotonic() < end_s, threading.enumerate()
        time.sleep(0.01)


def test_a_stream_is_closed_in_a_callback_at_once() -> None:
    """Also while another server, which hangs, has one of its requests."""
    with sharing_server() as first, sharing_server() as second:
        client = Client([first.url, second.url], timeout_s=5)
        stream = client.stream()
        stream.infer("m", X).result()
        hung = first if "ModelInfer" in first.calls else second
        hung.delays_s["ModelInfer"] = 2.0
        patient = stream.infer("m", X)
        with pytest.raises(InferenceError):
            stream.infer("m", X, timeout_s=0.2).result()
        took_s: Future[float] = Future()

        def close(_: Future[Result]) -> None:
            begun_s = time.monotonic()
            stream.close()
            took_s.set_result(time.monotonic() - begun_s)

        stream.infer("m", X).add_done_callback(close)
        assert took_s.result(10) < 1.0
        # The one that has time is answered all the same.
        np.testing.assert_array_equal(patient.result(10).outputs["y"], X["x"] + 1)
        client.close()
    _wait_for_no_thread()


@pytest.mark.parametrize("timeout_s", [5.0, 0.2], ids=["answered", "late"])
def test_a_stream_goes_on_whatever_a_callback_raises(
    server: SharingServer, timeout_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: Future[Result]) -> None:
        raise SystemExit(1)

    with Client(server.url, timeout_s=5) as client, client.stream() as stream:
        stream.infer("m", X).result()
        server.delays_s["ModelInfer"] = 0.5
        first = stream.infer("m", X, timeout_s=timeout_s)
        first.add_done_callback(leave)
        second = stream.infer("m", X)
        with pytest.raises(InferenceError, match="within"):
            stream.infer("m", X, timeout_s=0.3).result(5)
        np.testing.assert_array_equal(second.result(5).outputs["y"], X["x"] + 1)
    assert "a callback of a future raised" in caplog.text
    _wait_for_no_thread()


def test_a_stream_whose_closing_is_interrupted(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    with Client(server.url, timeout_s=30) as client:
        stream = client.stream()
        stream.infer("m", X).result()
        server.delays_s["ModelInfer"] = 2.0
        future = stream.infer("m", X)
        monkeypatch.setattr("gatefuse.client.transport.connection.Connection.finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.close()
        assert isinstance(future.exception(1.5), InferenceError)
        _wait_for_no_thread()


def _other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _wait_for_no_task() -> None:
    end_s = time.monotonic() + 10
    while _other_tasks():
        assert time.monotonic() < end_s, _other_tasks()
        gc.collect()
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_an_asyncio_stream_that_nobody_has_any_more(server: SharingServer) -> None:
    async with AioClient(server.url, timeout_s=10) as client:
        stream = client.stream()
        await stream.infer("m", X)
        assert _other_tasks()
        del stream
        await _wait_for_no_task()


@pytest.mark.asyncio
async def test_an_asyncio_stream_whose_closing_is_cancelled(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(self: object) -> None:
        raise asyncio.CancelledError

    async with AioClient(server.url, timeout_s=10) as client:
        stream = client.stream()
        await stream.infer("m", X)
        name = "gatefuse.client.transport.aio_stream.AioConnection.finish"
        monkeypatch.setattr(name, interrupted)
        with pytest.raises(asyncio.CancelledError):
            await stream.close()
        await _wait_for_no_task()
