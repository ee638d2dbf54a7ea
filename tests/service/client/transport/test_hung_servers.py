"""Streams to two servers, one of which takes requests and answers none: both clients leave it alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from tests.service.either_client import Either, connected
from tests.service.sharing_server import SharingServer, sharing_server

from gatefuse.client.messages import InferenceError

X = {"x": np.ones((2, 4), np.float32)}
Servers = tuple[SharingServer, SharingServer]


@pytest.fixture
def servers() -> Iterator[Servers]:
    with sharing_server() as first, sharing_server() as second:
        yield first, second


@pytest.fixture(params=["blocking stream", "asyncio stream"])
def client(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Either]:
    urls = [server.url for server in servers]
    client = connected(request.param, urls, timeout_s=5)
    yield client
    client.end()


def _asked(servers: Servers) -> tuple[SharingServer, SharingServer]:
    """The one that has the stream, and the other one."""
    first, second = servers
    return (first, second) if "ModelInfer" in first.calls else (second, first)


def test_a_stream_leaves_a_server_that_hangs(servers: Servers, client: Either) -> None:
    client.infer("m", X)
    hung, other = _asked(servers)
    hung.delays_s["ModelInfer"] = 1.0
    begun_s = time.monotonic()
    with pytest.raises(InferenceError) as caught:
        client.infer("m", X, timeout_s=0.3)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    for _ in range(4):
        np.testing.assert_array_equal(client.infer("m", X, timeout_s=0.3).output, X["x"] + 1)
    assert time.monotonic() - begun_s < 1.0
    assert (hung.calls.count("ModelInfer"), other.calls.count("ModelInfer")) == (2, 4)


def test_requests_that_have_time_wait_on(servers: Servers, client: Either) -> None:
    client.infer("m", X)
    hung, other = _asked(servers)
    hung.delays_s["ModelInfer"] = 1.0
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(client.infer, "m", X)
        while hung.calls.count("ModelInfer") < 2:
            time.sleep(0.01)
        with pytest.raises(InferenceError, match=r"within 0\.3 s"):
            client.infer("m", X, timeout_s=0.3)
        client.infer("m", X, timeout_s=0.3)
        assert not patient.done()
        np.testing.assert_array_equal(patient.result(5).output, X["x"] + 1)
    assert other.calls.count("ModelInfer") == 1


def test_one_that_answers_others_meanwhile_keeps_the_stream(
    servers: Servers, client: Either
) -> None:
    client.infer("m", X)
    busy, other = _asked(servers)
    busy.delays_s["ModelInfer"] = 0.2
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.infer, "m", X)
        while busy.calls.count("ModelInfer") < 2:
            time.sleep(0.01)
        with pytest.raises(InferenceError, match=r"within 0\.3 s"):
            client.infer("m", X, timeout_s=0.3)
        first.result(5)
    client.infer("m", X)
    assert "ModelInfer" not in other.calls
