"""What both clients say of addresses and timeouts that cannot be, before anything is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.transport.targets import targets


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8001",
        "10.0.0.1:1",
        "[::1]:8001",
        "unix:/tmp/a",
        "dns:///a.b:1",
        "dns:8001",
        "ipv6:[::1]:1",
    ],
)
def test_addresses(url: str) -> None:
    assert targets(url) == (url,)
    assert targets([url, "b:1"]) == (url, "b:1")


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        (None, TypeError, "HOST:PORT"),
        (8001, TypeError, "HOST:PORT"),
        (["a:1", None], TypeError, "HOST:PORT"),
        ([], ValueError, "no endpoint"),
        ("", ValueError, "'' is not HOST:PORT"),
        ("localhost", ValueError, "'localhost' is not HOST:PORT, such as localhost:8001"),
        ("localhost:", ValueError, "not HOST:PORT"),
        ("localhost:http", ValueError, "not HOST:PORT"),
        ("::1", ValueError, "not HOST:PORT"),
        ("http://localhost:8001", ValueError, "without 'http://'"),
        ("grpc://localhost:8001", ValueError, "without 'grpc://'"),
        (["a:1", "https://b:2"], ValueError, "without 'https://'"),
    ],
)
@pytest.mark.asyncio
async def test_addresses_that_cannot_be(url: Any, error: type[Exception], text: str) -> None:
    for kind in (Client, AioClient):
        with pytest.raises(error, match=text):
            kind(url)


BAD_TIMEOUTS = [
    (math.inf, ValueError),
    (math.nan, ValueError),
    (0, ValueError),
    (-1.0, ValueError),
    (True, TypeError),
    ("5", TypeError),
]


@pytest.mark.parametrize(("timeout_s", "error"), [*BAD_TIMEOUTS, (None, TypeError)])
@pytest.mark.asyncio
async def test_timeouts_that_cannot_be(timeout_s: Any, error: type[Exception]) -> None:
    for kind in (Client, AioClient):
        with pytest.raises(error, match="timeout_s must be a"):
            kind("localhost:1", timeout_s=timeout_s)


@pytest.mark.parametrize(("timeout_s", "error"), BAD_TIMEOUTS)
@pytest.mark.asyncio
async def test_timeouts_of_a_call_that_cannot_be(
    fake_url: str, timeout_s: Any, error: type[Exception]
) -> None:
    x = np.ones((1, 4), np.float32)
    seconds: Any = np.float32(5)
    with Client(fake_url, timeout_s=seconds) as client:
        with pytest.raises(error, match="timeout_s must be a"):
            client.infer("identity", x, timeout_s=timeout_s)
        assert client.infer("identity", x, timeout_s=seconds).output.shape == x.shape
    async with AioClient(fake_url) as aio_client:
        with pytest.raises(error, match="timeout_s must be a"):
            await aio_client.infer("identity", x, timeout_s=timeout_s)
