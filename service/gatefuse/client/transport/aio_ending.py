"""How a call of many messages ended, for asyncio: what the server said, where grpc.aio says something of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from gatefuse.client.transport.call_ended import CallEnded

# The text that grpc.aio has, as INTERNAL, for a write that meets a call which has ended.
_OF_A_LATE_WRITE = "Internal error from Core"
# The server's status comes at about the same time.
_STATUS_S = 1.0


class Ending:
    """Remembers the status that a server ends a call with.

    A write that meets the end of its call makes grpc.aio put a status of its own in the place of the server's, before
    that one comes or after. Callbacks hear of both.
    """

    def __init__(self, call: Any) -> None:
        """``call`` was opened just now."""
        self._said: asyncio.Future[CallEnded]
        self._said = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._hear)

    async def of(self, error: grpc.aio.AioRpcError) -> CallEnded | grpc.aio.AioRpcError:
        """Returns the server's status, which may be OK, where ``error`` is a late write's; otherwise ``error``."""
        if not _is_of_a_late_write(error):
            return error
        await asyncio.wait([self._said], timeout=_STATUS_S)
        if self._said.done():
            return self._said.result()
        return CallEnded(grpc.StatusCode.UNAVAILABLE, "it had ended when a request was sent")

    def _hear(self, call: Any) -> None:
        ended = (_at_once(each()) for each in (call.code, call.details, call.trailing_metadata))
        status = CallEnded(*ended)
        if not (_is_of_a_late_write(status) or self._said.done()):
            self._said.set_result(status)


def _is_of_a_late_write(error: CallEnded | grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == _OF_A_LATE_WRITE


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing, as those of a call that is done."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a call that is done makes its reader wait")
