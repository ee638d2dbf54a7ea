"""tritonclient's two clients, called the same way: the asyncio one runs on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

Refused: TypeAlias = tuple[str, str]

PATIENCE_S = 60.0
CLASSES = {
    "grpc": tritonclient.grpc.InferenceServerClient,
    "grpc.aio": tritonclient.grpc.aio.InferenceServerClient,
}


def public_methods(kind: str) -> set[str]:
    """The names that users may call."""
    members = inspect.getmembers(CLASSES[kind], inspect.isfunction)
    return {name for name, _ in members if not name.startswith("_")}


class TritonClient:
    """A client of either kind: its methods by their names, blocking in both cases."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client: Any = self._wait(self._make(url))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        def call(*values: Any, **options: Any) -> Any:
            answer = method(*values, **options)
            return self._wait(answer) if inspect.isawaitable(answer) else answer

        return call

    def stream(self, requests: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
        """Sends the requests over one stream; returns result and error of each answer, as they came."""
        if self.kind == "grpc.aio":
            answers: list[tuple[Any, Any]] = self._wait(self._collect(requests))
            return answers
        received: list[tuple[Any, Any]] = []
        self.client.start_stream(lambda result, error: received.append((result, error)))
        try:
            for request in requests:
                self.client.async_stream_infer(**request)
        finally:
            self.client.stop_stream()  # waits for the answers
        return received

    def end(self) -> None:
        """Closes the client and its loop."""
        try:
            self.close()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _make(self, url: str) -> Any:
        return CLASSES[self.kind](url)

    async def _collect(self, requests: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
        async def asked() -> AsyncIterator[dict[str, Any]]:
            for request in requests:
                yield request

        return [answer async for answer in self.client.stream_infer(asked())]

    def _wait(self, awaitable: Any) -> Any:
        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)


@contextmanager
def connected(kind: str, url: str) -> Iterator[TritonClient]:
    """A client that is closed afterwards."""
    client = TritonClient(kind, url)
    try:
        yield client
    finally:
        client.end()


def status_of(error: InferenceServerException) -> grpc.StatusCode:
    """The status that tritonclient keeps as a text."""
    name = str(error.status()).removeprefix("StatusCode.")
    return grpc.StatusCode[name]


@contextmanager
def refused(status: grpc.StatusCode, text: str | None = None) -> Iterator[None]:
    """The block must end with that status, and a message that matches ``text``."""
    with pytest.raises(InferenceServerException, match=text) as caught:
        yield
    assert status_of(caught.value) is status, caught.value
