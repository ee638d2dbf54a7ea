"""The same calls as ``gatefuse.client.transport.blocking``, awaited."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from gatefuse.client.forking import Maker
from gatefuse.client.messages import CHANNEL_OPTIONS, InferenceError
from gatefuse.client.transport.balancer import Attempts, Balancer
from gatefuse.client.transport.deadline import Deadline, checked_timeout_s
from gatefuse.client.transport.own_clock import AioOwnClock
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


async def run(
    steps: Steps[_Result], answer_to: Callable[[Call], Awaitable[Message | InferenceError]]
) -> _Result:
    """Returns what ``steps`` come to; ``answer_to`` makes each call. Raises as the steps do."""
    answer = None
    try:
        while True:
            answer = await answer_to(advance(steps, answer))
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        steps.close()
        answer = None  # an error's traceback holds this frame


class AioTransport:
    """A channel to each endpoint, for the event loop that is running when it is made."""

    def __init__(
        self,
        url: str | Sequence[str],
        credentials: grpc.ChannelCredentials | None,
        timeout_s: float,
        retry: RetryPolicy,
    ) -> None:
        """Connects at the first call; ``timeout_s`` is for calls that do not say."""
        self.timeout_s = checked_timeout_s(timeout_s)
        self.maker = Maker("this client")
        self._retry = retry
        self._targets = targets(url)
        self._credentials = credentials
        self._channels = [
            grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, CHANNEL_OPTIONS)
            for target in self._targets
        ]
        self._stubs: dict[tuple[int, str], Callable[..., Any]] = {}
        self._balancer = Balancer(len(self._channels))
        self._closed = asyncio.Event()
        self._own_clocks = [AioOwnClock() for _ in self._targets]

    @property
    def endpoints(self) -> int:
        """How many servers there are."""
        return len(self._channels)

    def anew(self) -> AioTransport:
        """Another one to the same endpoints, which does not retry."""
        return AioTransport(self._targets, self._credentials, self.timeout_s, NO_RETRY)

    async def close(self) -> None:
        """Closes the channels; calls still open, and any later one, end with CANCELLED."""
        self._closed.set()
        if not self.maker.is_here:
            return
        for channel in self._channels:
            await channel.close()

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """The deadline of a call that begins now; None is for calls that do not say."""
        return Deadline(self.timeout_s if timeout_s is None else timeout_s)

    async def run(self, steps: Steps[_Result], deadline: Deadline) -> _Result:
        """Makes the calls of ``steps``: see ``blocking.Transport.run``."""
        return await run(steps, lambda call: self.answer_to(call, deadline))

    async def answer_to(self, call: Call, deadline: Deadline) -> Message | InferenceError:
        """What comes of a call, an error included."""
        try:
            timeout_s = min(deadline.left_s(), call.at_most_s)
            response: Message = await self.call(
                call.rpc, call.request, timeout_s, retry=call.retry, instead=call.instead
            )
        except InferenceError as error:
            return error
        return response

    async def call(
        self,
        rpc: Rpc[_Response],
        request: Message,
        timeout_s: float | None = None,
        *,
        retry: bool = True,
        instead: Callable[[], Message] | None = None,
    ) -> _Response:
        """Returns the answer to a request that may be sent twice: see ``blocking.Transport.call``."""
        self.maker.check()
        now_s = time.monotonic()
        deadline_s = now_s + (self.timeout_s if timeout_s is None else timeout_s)
        attempts, told = None, NO_TIME_LEFT
        endpoint = self._balancer.pick(now_s)
        while True:
            if self._closed.is_set():
                raise client_closed()
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise InferenceError(*told)
            try:
                response: _Response = await self._ask(endpoint, rpc, request, left_s)
            except grpc.RpcError as error:
                if self._closed.is_set():
                    raise client_closed() from error
                failure = Failure.of_call(error)
                if attempts is None:
                    policy = self._retry if retry else NO_RETRY
                    attempts = Attempts(self._balancer, policy, deadline_s, random.random)
                following = attempts.after(endpoint, failure, time.monotonic())
                told = status_of(error)
                if following is None:
                    raise InferenceError(*told) from error
                if instead is not None and not failure.is_refusal:
                    request, instead = instead(), None
            except asyncio.CancelledError as error:
                if not self._closed.is_set() or _task_is_cancelled():
                    raise
                # grpc.aio raises this in whoever awaits a call on a channel that is closed.
                raise client_closed() from error
            else:
                self.answered(endpoint)
                return response
            await self._wait(following.wait_s)
            endpoint = following.endpoint

    async def _ask(
        self, endpoint: int, rpc: Rpc[_Response], request: Message, timeout_s: float
    ) -> _Response:
        stub, own_clock = self._stub(endpoint, rpc), self._own_clocks[endpoint]
        response: _Response | None
        if own_clock.is_needed(request):
            response = await own_clock.call(stub, request, timeout_s)
        else:
            response = await stub(request, timeout=timeout_s)
        if response is None:
            # What grpc.aio gives for an answer that cannot be parsed.
            raise InferenceError(grpc.StatusCode.INTERNAL, "the answer cannot be read")
        return response

    def stream(self, rpc: Rpc[_Response], requests: AsyncIterator[Message]) -> tuple[Any, int]:
        """Opens a call with many messages both ways: see ``blocking.Transport.stream``."""
        self.maker.check()
        if self._closed.is_set():
            raise client_closed()
        endpoint = self._balancer.pick(time.monotonic())
        open_call: grpc.aio.StreamStreamMultiCallable[Message, _Response] = self._channels[
            endpoint
        ].stream_stream(rpc.path, serialize, rpc.parse)
        return open_call(requests), endpoint

    def answered(self, endpoint: int) -> None:
        """An answer came: the endpoint is ready."""
        self._balancer.succeeded(endpoint)

    def stream_failed(self, endpoint: int, failure: Failure) -> None:
        """A stream on that endpoint failed: the next one is opened elsewhere, if there is an elsewhere."""
        self._balancer.failed(endpoint, failure, time.monotonic())

    async def _wait(self, wait_s: float) -> None:
        """Waits so long, or until the client is closed."""
        try:
            await asyncio.wait_for(self._closed.wait(), wait_s)
        except TimeoutError:
            return

    def _stub(self, endpoint: int, rpc: Rpc[_Response]) -> Callable[..., Any]:
        stub = self._stubs.get((endpoint, rpc.path))
        if stub is None:
            stub = self._channels[endpoint].unary_unary(rpc.path, serialize, rpc.parse)
            self._stubs[endpoint, rpc.path] = stub
        return stub


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
