"""Deadlines by this process's own clock, where gRPC's are not kept.

gRPC ends no call while it writes the call's message. A server that has stopped reading, because it hangs, takes no
message that is larger than the window it once granted: its callers would wait until it goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from gatefuse.client.transport.call_ended import CallEnded
from gatefuse.client.transport.retry import OWN_DEADLINE

# HTTP/2 lets a sender send so much before it hears of the receiver.
WINDOW_BYTES = 65535
# gRPC's own deadline tells more, and nearly always comes.
GRACE_S = 0.05


def deadline_passed() -> CallEnded:
    """What gRPC would have raised, had it kept the deadline."""
    return CallEnded(grpc.StatusCode.DEADLINE_EXCEEDED, OWN_DEADLINE)


def is_large(request: Message) -> bool:
    """Whether a server that has stopped reading may not take all of a request."""
    return request.ByteSize() > WINDOW_BYTES


class OwnClock:
    """Makes calls that gRPC may not be able to end; safe for threads."""

    def __init__(self) -> None:
        """No call is open."""
        self._lock = threading.Lock()
        self._large = 0
        self._waiting: set[threading.Event] = set()
        self._closed = False

    def is_needed(self, request: Message) -> bool:
        """Whether a call may outlast its deadline: it is large, or is sent behind one that is."""
        return self._large > 0 or is_large(request)

    def call(self, stub: Any, request: Message, timeout_s: float) -> Any:
        """Returns the answer of a stub, a ``grpc.UnaryUnaryMultiCallable``. Raises CallEnded."""
        ended = threading.Event()
        with self._lock:
            if self._closed:
                raise deadline_passed()
            self._large += 1
            self._waiting.add(ended)
        call = failure = None
        try:
            call = stub.future(request, timeout=timeout_s)
            call.add_done_callback(lambda _: self._is_done(ended))
            ended.wait(timeout_s + GRACE_S)
            if not call.done():
                raise deadline_passed()
            try:
                return call.result()
            except grpc.RpcError as error:
                # It is the call itself, which its own traceback holds: nothing may be left of either.
                error.__traceback__ = None
                failure = CallEnded(call.code(), call.details(), call.trailing_metadata())
            raise failure
        finally:
            with self._lock:
                self._waiting.discard(ended)
            if call is None:
                self._is_done(ended)
            elif not call.done():
                call.cancel()
            call = failure = None

    def close(self) -> bool:
        """No call is made any more; returns whether some has not ended, though its caller may have."""
        with self._lock:
            self._closed = True
            return self._large > 0

    def wake(self) -> None:
        """The channels were closed: nobody waits any longer."""
        with self._lock:
            for ended in self._waiting:
                ended.set()

    def _is_done(self, ended: threading.Event) -> None:
        with self._lock:
            self._large -= 1
        ended.set()


class AioOwnClock:
    """The same for calls that are awaited. An awaited call that is given up is done at once, whatever becomes of it."""

    def __init__(self) -> None:
        """No call is open."""
        self._large = 0
        # The last large call was given up: what it left may be before others.
        self._is_stuck = False

    def is_needed(self, request: Message) -> bool:
        """Whether a call may outlast its deadline: it is large, or is sent behind one that is."""
        return self._large > 0 or self._is_stuck or is_large(request)

    async def call(self, stub: Callable[..., Any], request: Message, timeout_s: float) -> Any:
        """Returns the answer of a stub. Raises grpc.RpcError as that does, CallEnded among them."""
        self._large += 1
        is_answered = False
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                response = await stub(request, timeout=timeout_s)
            is_answered = True
            return response
        except TimeoutError as error:
            raise deadline_passed() from error
        finally:
            self._large -= 1
            self._is_stuck = not is_answered
