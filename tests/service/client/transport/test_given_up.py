"""Requests on a stream that were given up while the server took none, or refused: they are not sent later, nor kept."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tests.service.either_client import connected
from tests.service.grpc_serving import serving
from tests.service.sharing_server import sharing_server

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError
from gatefuse_protos import open_inference_pb2 as pb

# gRPC's window does not grow with what travels: it sends no such request whole to a server that reads none.
WINDOW = (("grpc.http2.bdp_probe", 0),)
X = {"x": np.ones((64, 4096), np.float32)}
OPTIONS: dict[str, Any] = {"timeout_s": 30, "shared_memory": "off"}
COUNT = 10


class Stopped:
    """A server that reads no request before it may; then it answers each with its own rows."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[str] = []
        self.may_read = threading.Event()

    def stream_infer(self, requests: Any, context: Any) -> Iterator[pb.ModelStreamInferResponse]:
        self.may_read.wait(30)
        for request in requests:
            self.seen.append(request.model_name)
            response = pb.ModelStreamInferResponse()
            answer = response.infer_response
            answer.id = request.id
            answer.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
            answer.raw_output_contents.append(request.raw_input_contents[0])
            yield response


@pytest.fixture
def server() -> Iterator[Stopped]:
    stopped = Stopped()
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        stopped.stream_infer,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    with serving({"ModelStreamInfer": handler}, threads=4, options=WINDOW) as stopped.url:
        yield stopped
        stopped.may_read.set()


def _check(seen: list[str]) -> None:
    """Only what gRPC had taken already was sent beside the one that somebody waits for."""
    assert seen[-1] == "wanted"
    assert len(seen) <= 2, seen


@pytest.mark.parametrize("way", ["blocking stream", "asyncio stream"])
def test_those_that_waited_too_long(server: Stopped, way: str) -> None:
    client = connected(way, server.url, **OPTIONS)
    for number in range(COUNT):
        with pytest.raises(InferenceError, match="DEADLINE_EXCEEDED"):
            client.infer(f"given-up-{number}", X, timeout_s=0.05)
    server.may_read.set()
    np.testing.assert_array_equal(client.infer("wanted", X).output, X["x"])
    client.end()
    _check(server.seen)


def test_cancelled_futures(server: Stopped) -> None:
    with Client(server.url, **OPTIONS) as client, client.stream() as stream:
        futures = [stream.infer(f"given-up-{number}", X) for number in range(COUNT)]
        assert all(future.cancel() for future in futures)
        # Somebody else may wait for them.
        assert wait(futures, 10).not_done == set()
        server.may_read.set()
        np.testing.assert_array_equal(stream.infer("wanted", X).result(20).output, X["x"])
    _check(server.seen)


@pytest.mark.asyncio
async def test_cancelled_tasks(server: Stopped) -> None:
    async with AioClient(server.url, **OPTIONS) as client, client.stream() as stream:
        tasks = [
            asyncio.create_task(stream.infer(f"given-up-{number}", X)) for number in range(COUNT)
        ]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        server.may_read.set()
        np.testing.assert_array_equal((await stream.infer("wanted", X)).output, X["x"])
    _check(server.seen)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _wait_until_gone(gone: weakref.ref[InferenceError]) -> None:
    """The stream's thread may have it a little longer than the caller."""
    end_s = time.monotonic() + 10
    while gone() is not None:
        assert time.monotonic() < end_s, gc.get_referrers(gone())
        time.sleep(0.01)


def test_an_error_that_nobody_has_any_more_keeps_no_request() -> None:
    with (
        sharing_server() as server,
        Client(server.url) as client,
        client.stream() as stream,
        _no_garbage_collection(),
    ):
        error = stream.infer("absent", X).exception(20)
        assert isinstance(error, InferenceError)
        gone = weakref.ref(error)
        del error
        _wait_until_gone(gone)


@pytest.mark.asyncio
@pytest.mark.parametrize("model", ["absent", "m"])
async def test_nor_does_that_of_an_asyncio_stream(model: str) -> None:
    with sharing_server() as server:
        server.delays_s["ModelInfer"] = 0.5
        async with AioClient(server.url) as client, client.stream() as stream:
            with _no_garbage_collection():
                try:
                    await stream.infer(model, X, timeout_s=0.1 if model == "m" else 20)
                except InferenceError as error:
                    gone = weakref.ref(error)
                await asyncio.sleep(0)
                assert gone() is None
