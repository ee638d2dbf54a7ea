"""The same calls as ``gatefuse.transport.blocking``, awaited."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from gatefuse.messages import CHANNEL_OPTIONS, InferenceError
from gatefuse.transport.balancer import Attempts, Balancer
from gatefuse.transport.retry import NO_RETRY, Failure, RetryPolicy
from gatefuse.transport.rpcs import Rpc, serialize, targets

_Response = TypeVar("_Response", bound=Message)


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
        self.timeout_s = timeout_s
        self._retry = retry
        self._channels = [
            grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, CHANNEL_OPTIONS)
            for target in targets(url)
        ]
        self._stubs: dict[tuple[int, str], Callable[..., Any]] = {}
        self._balancer = Balancer(len(self._channels))

    @property
    def endpoints(self) -> int:
        """How many servers there are."""
        return len(self._channels)

    async def close(self) -> None:
        """Closes the channels; calls still open end with CANCELLED."""
        for channel in self._channels:
            await channel.close()

    async def call(
        self,
        rpc: Rpc[_Response],
        request: Message,
        timeout_s: float | None = None,
        *,
        retry: bool = True,
    ) -> _Response:
        """Returns the answer to a request that may be sent twice: see ``blocking.Transport.call``."""
        now_s = time.monotonic()
        deadline_s = now_s + (self.timeout_s if timeout_s is None else timeout_s)
        attempts = None
        endpoint = self._pick(now_s)
        while True:
            try:
                left_s = max(deadline_s - time.monotonic(), 0.0)
                response: _Response = await self._stub(endpoint, rpc)(request, timeout=left_s)
            except grpc.aio.AioRpcError as error:
                if attempts is None:
                    policy = self._retry if retry else NO_RETRY
                    attempts = Attempts(self._balancer, policy, deadline_s, random.random)
                following = attempts.after(endpoint, Failure.of(error), time.monotonic())
                if following is None:
                    raise InferenceError.of(error) from error
            else:
                self.answered(endpoint)
                return response
            await asyncio.sleep(following.wait_s)
            endpoint = following.endpoint

    def stream(self, rpc: Rpc[_Response], requests: AsyncIterator[Message]) -> tuple[Any, int]:
        """Opens a call with many messages both ways: see ``blocking.Transport.stream``."""
        endpoint = self._pick(time.monotonic())
        open_call: grpc.aio.StreamStreamMultiCallable[Message, _Response] = self._channels[
            endpoint
        ].stream_stream(rpc.path, serialize, rpc.parse)
        return open_call(requests), endpoint

    def answered(self, endpoint: int) -> None:
        """An answer came: the endpoint is ready."""
        self._balancer.succeeded(endpoint)

    def stream_failed(self, endpoint: int, error: grpc.aio.AioRpcError) -> None:
        """A stream on that endpoint failed: the next one is opened elsewhere, if there is an elsewhere."""
        self._balancer.failed(endpoint, Failure.of(error), time.monotonic())

    def _stub(self, endpoint: int, rpc: Rpc[_Response]) -> Callable[..., Any]:
        stub = self._stubs.get((endpoint, rpc.path))
        if stub is None:
            stub = self._channels[endpoint].unary_unary(rpc.path, serialize, rpc.parse)
            self._stubs[endpoint, rpc.path] = stub
        return stub

    def _pick(self, now_s: float) -> int:
        endpoint = self._balancer.pick(now_s)
        assert endpoint is not None, "nothing was tried"
        return endpoint
