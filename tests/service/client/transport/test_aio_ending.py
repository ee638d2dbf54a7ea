"""What is believed where grpc.aio puts a status of its own in the place of the server's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from gatefuse.client.transport import aio_ending
from gatefuse.client.transport.aio_ending import Ending
from gatefuse.client.transport.retry import Failure

Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]

LATE_WRITE: Status = (grpc.StatusCode.INTERNAL, "Internal error from Core", ())
DRAINING: Status = (grpc.StatusCode.UNAVAILABLE, "draining", (("grpc-retry-pushback-ms", "700"),))
CLOSED: Status = (grpc.StatusCode.OK, "", ())


class Call:
    """A call of grpc.aio as far as its end goes: each status that is set replaces the last one."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []
        self._status = CLOSED

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*self._status[2])

    def set(self, status: Status) -> None:
        self._status = status
        for callback in self._callbacks:
            callback(self)


def _error(status: Status) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(status[0], nothing, grpc.aio.Metadata(*status[2]), status[1])


@pytest.mark.asyncio
@pytest.mark.parametrize("order", [(LATE_WRITE, DRAINING), (DRAINING, LATE_WRITE)])
async def test_the_servers_status_counts_whenever_it_comes(order: tuple[Status, Status]) -> None:
    call = Call()
    ending = Ending(call)
    for status in order:
        call.set(status)
    found = await ending.of(_error(LATE_WRITE))
    assert (found.code(), found.details()) == (grpc.StatusCode.UNAVAILABLE, "draining")
    assert Failure.of(found) == Failure(grpc.StatusCode.UNAVAILABLE, 0.7)


@pytest.mark.asyncio
async def test_a_stream_that_the_server_closed_is_no_error_of_its_own() -> None:
    call = Call()
    ending = Ending(call)
    call.set(CLOSED)
    call.set(LATE_WRITE)
    assert (await ending.of(_error(LATE_WRITE))).code() is grpc.StatusCode.OK


@pytest.mark.asyncio
async def test_a_status_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_ending, "_STATUS_S", 0.01)
    call = Call()
    ending = Ending(call)
    call.set(LATE_WRITE)
    found = await ending.of(_error(LATE_WRITE))
    assert Failure.of(found) == Failure(grpc.StatusCode.UNAVAILABLE)


@pytest.mark.asyncio
async def test_any_other_status_is_believed() -> None:
    error = _error((grpc.StatusCode.INTERNAL, "the server's own", ()))
    assert await Ending(Call()).of(error) is error
