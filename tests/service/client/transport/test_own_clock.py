"""Both transports against a server that has stopped reading: gRPC itself would end no call to it."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import numpy as np
import pytest
from tests.service.grpc_serving import serving

from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.asynchronous import AioTransport
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.own_clock import deadline_passed
from gatefuse.client.transport.retry import NO_RETRY, Failure
from gatefuse_protos import open_inference_pb2 as pb

Code = grpc.StatusCode
# Frame types and settings of HTTP/2, RFC 9113.
_SETTINGS, _WINDOW_UPDATE = 4, 8
_INITIAL_WINDOW_SIZE = 4
_LARGEST_WINDOW = 2**31 - 1
# The server goes away then: a test without the mend fails rather than hangs.
PATIENCE_S = 8.0
SOON_S = 4.0

LARGE = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(16 * 2**20)])
SMALL = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"1234"])


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + bytes(4) + payload


def _hang(server: socket.socket) -> None:
    """Grants the largest window, and reads nothing."""
    connections = []
    window = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)
    more = struct.pack(">I", _LARGEST_WINDOW - 65535)
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            break
        connection.sendall(_frame(_SETTINGS, window) + _frame(_WINDOW_UPDATE, more))
        connections.append(connection)
    for connection in connections:
        connection.close()


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        server.bind(("127.0.0.1", 0))
        server.listen()
        thread = threading.Thread(target=_hang, args=(server,))
        thread.start()
        timer = threading.Timer(PATIENCE_S, server.shutdown, (socket.SHUT_RDWR,))
        timer.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        timer.cancel()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()
        timer.join()


def _failure(
    transport: Transport, request: pb.ModelInferRequest, timeout_s: float
) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        transport.call(rpcs.MODEL_INFER, request, timeout_s)
    return caught.value


def _blocking(url: str) -> list[InferenceError]:
    transport = Transport(url, None, 5.0, NO_RETRY)
    found = [_failure(transport, request, 0.2) for request in (LARGE, SMALL, LARGE)]
    transport.close()
    return found


def _awaited(url: str) -> list[InferenceError]:
    async def run() -> list[InferenceError]:
        transport = AioTransport(url, None, 5.0, NO_RETRY)
        found = []
        for request in (LARGE, SMALL, LARGE):
            with pytest.raises(InferenceError) as caught:
                await transport.call(rpcs.MODEL_INFER, request, 0.2)
            found.append(caught.value)
        await transport.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("call", [_blocking, _awaited], ids=["blocking", "asyncio"])
def test_the_deadline_is_kept(url: str, call: Callable[[str], list[InferenceError]]) -> None:
    """Of small calls behind a large one, too."""
    begun_s = time.monotonic()
    assert {error.code for error in call(url)} == {Code.DEADLINE_EXCEEDED}
    assert time.monotonic() - begun_s < SOON_S


def test_closing_ends_the_calls(url: str) -> None:
    transport = Transport(url, None, 5.0, NO_RETRY)
    begun_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(_failure, transport, LARGE, 60.0)
        time.sleep(0.3)
        transport.close()
        assert call.result().code is Code.CANCELLED
    assert time.monotonic() - begun_s < SOON_S


def test_closing_ends_awaited_calls(url: str) -> None:
    async def run() -> InferenceError:
        transport = AioTransport(url, None, 5.0, NO_RETRY)
        call = asyncio.create_task(transport.call(rpcs.MODEL_INFER, LARGE, 60.0))
        await asyncio.sleep(0.3)
        await transport.close()
        with pytest.raises(InferenceError) as caught:
            await call
        return caught.value

    begun_s = time.monotonic()
    assert asyncio.run(run()).code is Code.CANCELLED
    assert time.monotonic() - begun_s < SOON_S


def test_closing_ends_calls_to_every_server(url: str) -> None:
    """Those to a slow one beside one that has stopped reading."""
    release = threading.Event()

    def wait(request: bytes, context: object) -> bytes:
        release.wait(PATIENCE_S)
        return b""

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(wait)
    with serving({"ModelInfer": handler}, threads=1) as slow, ThreadPoolExecutor(2) as pool:
        transport = Transport([slow, url], None, 5.0, NO_RETRY)
        begun_s = time.monotonic()
        calls = []
        for request in (SMALL, LARGE):
            calls.append(pool.submit(_failure, transport, request, 60.0))
            time.sleep(0.3)
        transport.close()
        assert [call.result().code for call in calls] == [Code.CANCELLED, Code.CANCELLED]
        assert time.monotonic() - begun_s < SOON_S
        release.set()


def test_a_large_call_that_failed_is_not_kept() -> None:
    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(Code.INVALID_ARGUMENT, "no")

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(refuse)
    with serving({"ModelInfer": handler}, threads=1) as url:
        transport = Transport(url, None, 5.0, NO_RETRY)
        gc.collect()
        gc.disable()
        try:
            assert _failure(transport, LARGE, 5.0).details == "no"
            calls = [type(each).__name__ for each in gc.get_objects()]
        finally:
            gc.enable()
            transport.close()
        assert "_MultiThreadedRendezvous" not in calls


@pytest.mark.parametrize("wait", [True, False])
def test_closing_a_client_with_a_stream(url: str, wait: bool) -> None:
    begun_s = time.monotonic()
    with Client(url, timeout_s=0.3, shared_memory="off") as client:
        stream = client.stream()
        futures = [stream.infer("m", {"x": np.ones((1024, 4096), np.float32)}) for _ in range(2)]
        stream.close(wait=wait)
        assert all(isinstance(future.exception(), InferenceError) for future in futures)
    assert time.monotonic() - begun_s < SOON_S


def test_such_a_server_rests() -> None:
    assert Failure.of(deadline_passed()).rests
