"""What the blocking stream's own threads never wait for: another caller's look-up, and themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import grpc
import numpy as np
import pytest
from tests.service.sharing_server import SharingServer, sharing_server

from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError, Result
from gatefuse.client.transport.stream import Stream

X = np.ones((2, 4), np.float32)
LOOK_UP_S = 3.0


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with sharing_server() as server:
        yield server


@pytest.fixture
def stream(server: SharingServer) -> Iterator[Stream]:
    with Client(server.url, timeout_s=10) as client, client.stream() as stream:
        np.testing.assert_array_equal(stream.infer("m", X).result(10).output, X + 1)
        yield stream


def _refused(server: SharingServer, stream: Stream) -> Future[Result]:
    """A request whose refusal is followed by a look-up that takes long."""
    server.delays_s["ModelMetadata"] = LOOK_UP_S
    server.calls.clear()
    refused = stream.infer("m", X, outputs=["none"])
    while "ModelMetadata" not in server.calls:
        time.sleep(0.01)
    return refused


def test_answers_do_not_wait_for_somebodys_look_up(server: SharingServer, stream: Stream) -> None:
    refused = _refused(server, stream)
    begun_s = time.monotonic()
    for future in [stream.infer("m", X) for _ in range(3)]:
        np.testing.assert_array_equal(future.result(10).output, X + 1)
    assert time.monotonic() - begun_s < LOOK_UP_S / 2
    assert not refused.done()
    with pytest.raises(InferenceError, match="no output"):
        refused.result(10)


def test_a_request_is_sent_again_after_its_look_up(server: SharingServer, stream: Stream) -> None:
    server.input = "renamed"
    server.delays_s["ModelMetadata"] = 0.3
    again = stream.infer("m", X)
    stream.close()
    np.testing.assert_array_equal(again.result(0).output, X + 1)


def test_giving_up_does_not_wait_for_a_look_up(server: SharingServer, stream: Stream) -> None:
    refused = _refused(server, stream)
    begun_s = time.monotonic()
    stream.close(wait=False)
    with pytest.raises(InferenceError) as caught:
        refused.result(0)
    assert time.monotonic() - begun_s < LOOK_UP_S / 2
    assert caught.value.code is grpc.StatusCode.CANCELLED


def _in_a_callback(stream: Stream, act: Callable[[], None]) -> tuple[float, list[Exception]]:
    """Acts in a callback of an answer; returns the seconds that it took, and what it raised."""
    took_s: list[float] = []
    raised: list[Exception] = []
    is_over, may_begin = threading.Event(), threading.Event()

    def call_back(_: Future[Result]) -> None:
        may_begin.wait(10)
        begun_s = time.monotonic()
        try:
            act()
        except Exception as error:
            raised.append(error)
        took_s.append(time.monotonic() - begun_s)
        is_over.set()

    stream.infer("m", X).add_done_callback(call_back)
    may_begin.set()
    assert is_over.wait(20)
    return took_s[0], raised


@pytest.mark.parametrize("wait", [True, False])
def test_closing_in_a_callback(server: SharingServer, stream: Stream, wait: bool) -> None:
    server.delays_s["ModelInfer"] = 0.2
    due: list[Future[Result]] = []

    def act() -> None:
        due.append(stream.infer("m", X))
        stream.close(wait=wait)

    took_s, raised = _in_a_callback(stream, act)
    assert raised == []
    assert took_s < 2
    if wait:
        np.testing.assert_array_equal(due[0].result(10).output, X + 1)
    else:
        with pytest.raises(InferenceError, match="CANCELLED"):
            due[0].result(10)
    end_s = time.monotonic() + 5
    while any(each.name.startswith("gatefuse-stream") for each in threading.enumerate()):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_closing_in_a_callback_after_a_look_up(server: SharingServer, stream: Stream) -> None:
    refused = _refused(server, stream)
    closed = threading.Event()

    def call_back(_: Future[Result]) -> None:
        stream.close()
        closed.set()

    refused.add_done_callback(call_back)
    assert closed.wait(LOOK_UP_S + 2)
