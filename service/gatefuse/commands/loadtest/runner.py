"""Sends requests from one event loop and takes the times. Knows bytes only, so that it costs little.

Requests are serialised before; a time is taken before an answer is looked at; answers go to a
callback.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from gatefuse.client.messages import CHANNEL_OPTIONS, method
from gatefuse.commands.loadtest.pacer import Pacer

# What a client of a closed loop waits after a refusal: without it a full server would be met with a
# storm.
_BACK_OFF_S = 0.01

OnAnswer = Callable[[int, bytes, float], None]
"""Called with the request's number, the answer, and the instant it was there."""


@dataclass(slots=True)
class Samples:
    """Instants of ``time.monotonic``, in pairs: when a request was due, and when its answer was there."""

    due_s: array[float] = field(default_factory=lambda: array("d"))
    done_s: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)
    error_text: str = ""
    unsent: int = 0
    lag_s: array[float] = field(default_factory=lambda: array("d"))

    def latencies_s(self, start_s: float, end_s: float) -> NDArray[np.float64]:
        """Returns how long the requests took whose answers came from ``start_s`` up to ``end_s``."""
        due, done = np.array(self.due_s), np.array(self.done_s)
        latencies: NDArray[np.float64] = (done - due)[(done >= start_s) & (done < end_s)]
        return latencies


class Runner:
    """Sends the same requests again and again over some connections."""

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        requests: Sequence[bytes],
        timeout_s: float,
        on_answer: OnAnswer,
    ) -> None:
        """Prepares the calls.

        Args:
            channels: Connections, used in turn.
            requests: Serialised ModelInfer requests, used in turn.
            timeout_s: Each call's deadline.
            on_answer: What to do with an answer; runs between two requests, so it must be quick.
        """
        self._calls: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
            channel.unary_unary(method("ModelInfer"), None, None) for channel in channels
        ]
        self._requests = requests
        self._timeout_s = timeout_s
        self._on_answer = on_answer
        self._numbers = count()
        self.samples = Samples()

    async def closed_loop(self, concurrency: int, end_s: float) -> None:
        """Lets ``concurrency`` clients send one request after the other until ``end_s``."""
        await asyncio.gather(*(self._client(end_s) for _ in range(concurrency)))

    async def open_loop(self, due_s: NDArray[np.float64], max_outstanding: int) -> None:
        """Sends one request at each instant of ``due_s`` and waits for the answers.

        A request's time counts from when it was due. While ``max_outstanding`` are unanswered the
        next one waits, and its waiting counts too; one that is late by a whole deadline is not
        sent.
        """
        pacer = Pacer()
        free = asyncio.Semaphore(max_outstanding)
        tasks: set[asyncio.Task[None]] = set()
        try:
            for instant in due_s.tolist():
                await pacer.wait_until(instant)
                await free.acquire()
                lag_s = time.monotonic() - instant
                if lag_s > self._timeout_s:
                    self.samples.unsent += 1
                    free.release()
                    continue
                self.samples.lag_s.append(lag_s)
                task = asyncio.create_task(self._send(instant))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: free.release())
            await asyncio.gather(*tasks)
        finally:
            pacer.close()

    async def _client(self, end_s: float) -> None:
        while (now := time.monotonic()) < end_s:
            if not await self._attempt(now):
                await asyncio.sleep(_BACK_OFF_S)

    async def _send(self, due_s: float) -> None:
        await self._attempt(due_s)

    async def _attempt(self, due_s: float) -> bool:
        number = next(self._numbers)
        call = self._calls[number % len(self._calls)]
        request = number % len(self._requests)
        try:
            answer = await call(self._requests[request], timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            self.samples.errors[error.code().name] += 1
            self.samples.error_text = self.samples.error_text or (error.details() or "")[:300]
            return False
        done_s = time.monotonic()
        self.samples.due_s.append(due_s)
        self.samples.done_s.append(done_s)
        self._on_answer(request, answer, done_s)
        return True


async def connect(url: str, connections: int, timeout_s: float) -> list[grpc.aio.Channel]:
    """Opens that many connections and waits until they are there.

    Raises TimeoutError if they are not within ``timeout_s``.
    """
    channels = [grpc.aio.insecure_channel(url, CHANNEL_OPTIONS) for _ in range(connections)]
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
    except TimeoutError as error:
        await asyncio.gather(*(channel.close() for channel in channels))
        raise TimeoutError(f"no connection to {url} within {timeout_s:g} s") from error
    return channels
