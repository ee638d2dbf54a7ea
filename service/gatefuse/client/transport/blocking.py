"""Blocking calls over one or several endpoints, with retries."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from gatefuse.client.forking import renew_in_child
from gatefuse.client.messages import CHANNEL_OPTIONS, InferenceError
from gatefuse.client.transport.balancer import Attempts, Balancer
from gatefuse.client.transport.deadline import Deadline, checked_timeout_s
from gatefuse.client.transport.own_clock import GRACE_S, OwnClock
from gatefuse.client.transport.retry import NO_RETRY, Failure, RetryPolicy
from gatefuse.client.transport.rpcs import (
    NO_TIME_LEFT,
    Call,
    Rpc,
    Steps,
    advance,
    client_closed,
    serialize,
    status_of,
)
from gatefuse.client.transport.targets import targets

_Response = TypeVar("_Response", bound=Message)
_Result = TypeVar("_Result")

# A connection that cannot be closed within so long is left to a thread.
CLOSE_S = 1.0
# Channels of a parent process. A child that let go of one would shut the connection down under its parent.
_inherited: list[list[grpc.Channel]] = []


class Transport:
    """A channel to each endpoint; safe for threads."""

    def __init__(
        self,
        url: str | Sequence[str],
        credentials: grpc.ChannelCredentials | None,
        timeout_s: float,
        retry: RetryPolicy,
    ) -> None:
        """Connects at the first call; ``timeout_s`` is for calls that do not say."""
        self.timeout_s = checked_timeout_s(timeout_s)
        self._retry = retry
        self._targets = targets(url)
        self._credentials = credentials
        self._channels = self._connected()
        self._stubs: dict[tuple[int, str], Callable[..., Any]] = {}
        self._balancer = Balancer(self.endpoints)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._own_clock = OwnClock()
        self._has_streamed = False
        renew_in_child(self)

    def renew(self) -> None:
        """A forked child has channels of its own: on its parent's connections both would read each other's answers.

        They are made at its first call: a child that has none should not touch gRPC.
        """
        _inherited.append(self._channels)
        self._channels = []
        self._stubs = {}
        was_closed = self._closed.is_set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._own_clock = OwnClock()
        if was_closed:
            self._closed.set()

    @property
    def endpoints(self) -> int:
        """How many servers there are."""
        return len(self._targets)

    def anew(self) -> Transport:
        """Another one to the same endpoints, which does not retry."""
        return Transport(self._targets, self._credentials, self.timeout_s, NO_RETRY)

    def close(self) -> None:
        """Closes the channels; calls still open, and any later one, end with CANCELLED."""
        self._closed.set()
        is_stuck = self._own_clock.close() or self._has_streamed
        if not is_stuck:
            for channel in self._channels:
                channel.close()
            return
        # gRPC waits here, too, for what it cannot end.
        closings = [
            threading.Thread(target=channel.close, name="gatefuse-close", daemon=True)
            for channel in self._channels
        ]
        for closing in closings:
            closing.start()
        _join(closings, GRACE_S)
        self._own_clock.wake()
        _join(closings, CLOSE_S)

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """The deadline of a call that begins now; None is for calls that do not say."""
        return Deadline(self.timeout_s if timeout_s is None else timeout_s)

    def run(self, steps: Steps[_Result], deadline: Deadline) -> _Result:
        """Makes the calls of ``steps``, which all end by the deadline. Raises as they do."""
        answer = None
        try:
            while True:
                answer = self.answer_to(advance(steps, answer), deadline)
        except StopIteration as end:
            result: _Result = end.value
            return result
        finally:
            steps.close()
            answer = None  # an error's traceback holds this frame

    def answer_to(self, call: Call, deadline: Deadline) -> Message | InferenceError:
        """What comes of a call, an error included."""
        try:
            timeout_s = min(deadline.left_s(), call.at_most_s)
            response: Message = self.call(
                call.rpc, call.request, timeout_s, retry=call.retry, instead=call.instead
            )
        except InferenceError as error:
            return error
        return response

    def call(
        self,
        rpc: Rpc[_Response],
        request: Message,
        timeout_s: float | None = None,
        *,
        retry: bool = True,
        instead: Callable[[], Message] | None = None,
    ) -> _Response:
        """Returns the answer to a request that may be sent twice.

        ``retry`` False asks each endpoint once at the most, and waits for none; ``instead`` is as ``Call`` has it.
        Raises InferenceError.
        """
        now_s = time.monotonic()
        deadline_s = now_s + (self.timeout_s if timeout_s is None else timeout_s)
        attempts, told = None, NO_TIME_LEFT
        endpoint = self._pick(now_s)
        while True:
            if self._closed.is_set():
                raise client_closed()
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise InferenceError(*told)
            try:
                response: _Response = self._ask(self._stub(endpoint, rpc), request, left_s)
            except grpc.RpcError as error:
                if self._closed.is_set():
                    raise client_closed() from error
                failure = Failure.of_call(error)
                if attempts is None:
                    policy = self._retry if retry else NO_RETRY
                    attempts = Attempts(self._balancer, policy, deadline_s, random.random)
                with self._lock:
                    following = attempts.after(endpoint, failure, time.monotonic())
                told = status_of(error)
                if following is None:
                    raise InferenceError(*told) from error
                if instead is not None and not failure.is_refusal:
                    request, instead = instead(), None
            except ValueError as error:
                # What gRPC raises where the channel was closed just now.
                if not self._closed.is_set():
                    raise
                raise client_closed() from error
            else:
                self.answered(endpoint)
                return response
            self._closed.wait(following.wait_s)
            endpoint = following.endpoint

    def _ask(self, stub: Callable[..., Any], request: Message, timeout_s: float) -> Any:
        if self._own_clock.is_needed(request):
            return self._own_clock.call(stub, request, timeout_s)
        return stub(request, timeout=timeout_s)

    def stream(self, rpc: Rpc[_Response], requests: Iterator[Message]) -> tuple[Any, int]:
        """Opens a call with many messages both ways; returns it and the endpoint it was opened on.

        It has no deadline of its own. Whoever reads it tells ``answered`` and ``stream_failed`` how it went.
        Raises InferenceError after ``close``.
        """
        endpoint = self._pick(time.monotonic())
        self._has_streamed = True
        open_call: grpc.StreamStreamMultiCallable[Message, _Response] = self._channel(
            endpoint
        ).stream_stream(rpc.path, serialize, rpc.parse)
        if self._closed.is_set():
            raise client_closed()
        try:
            return open_call(requests), endpoint
        except ValueError as error:
            if not self._closed.is_set():
                raise
            raise client_closed() from error

    def answered(self, endpoint: int) -> None:
        """An answer came: the endpoint is ready."""
        if self.endpoints > 1:
            with self._lock:
                self._balancer.succeeded(endpoint)

    def stream_failed(self, endpoint: int, failure: Failure) -> None:
        """A stream on that endpoint failed: the next one is opened elsewhere, if there is an elsewhere."""
        with self._lock:
            self._balancer.failed(endpoint, failure, time.monotonic())

    def _channel(self, endpoint: int) -> grpc.Channel:
        with self._lock:
            if not self._channels:
                self._channels = self._connected()
            return self._channels[endpoint]

    def _connected(self) -> list[grpc.Channel]:
        return [
            grpc.insecure_channel(target, CHANNEL_OPTIONS)
            if self._credentials is None
            else grpc.secure_channel(target, self._credentials, CHANNEL_OPTIONS)
            for target in self._targets
        ]

    def _stub(self, endpoint: int, rpc: Rpc[_Response]) -> Callable[..., _Response]:
        stub = self._stubs.get((endpoint, rpc.path))
        if stub is None:
            stub = self._channel(endpoint).unary_unary(rpc.path, serialize, rpc.parse)
            self._stubs[endpoint, rpc.path] = stub
        return stub

    def _pick(self, now_s: float) -> int:
        if self.endpoints == 1:
            return 0
        with self._lock:
            return self._balancer.pick(now_s)


def _join(threads: Sequence[threading.Thread], timeout_s: float) -> None:
    """Waits for all, but not longer than so."""
    end_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(end_s - time.monotonic(), 0.0))
