"""The four ways to ask, of both clients and alone or on a stream, as one for tests that hold for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.messages import Result


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """The blocking client."""

    def __init__(self, url: str | Sequence[str], stream: bool, options: dict[str, Any]) -> None:
        self.client = Client(url, **options)
        self._stream = self.client.stream() if stream else None

    def infer(self, *arguments: Any, **options: Any) -> Result:
        if self._stream is not None:
            return self._stream.infer(*arguments, **options).result(60)
        return self.client.infer(*arguments, **options)

    def close(self, *, with_stream: bool = True) -> None:
        if self._stream is not None and with_stream:
            self._stream.close()
        self.client.close()

    def end(self) -> None:
        """Closes it."""
        self.close()


class Asyncio:
    """The asyncio client."""

    def __init__(self, url: str | Sequence[str], stream: bool, options: dict[str, Any]) -> None:
        self._loop = Loop()
        self._loop.run(self._begin(url, stream, options))

    async def _begin(self, url: str | Sequence[str], stream: bool, options: dict[str, Any]) -> None:
        self.client = AioClient(url, **options)
        self._stream = self.client.stream() if stream else None

    def infer(self, *arguments: Any, **options: Any) -> Result:
        caller = self.client if self._stream is None else self._stream
        result: Result = self._loop.run(caller.infer(*arguments, **options))
        return result

    def close(self, *, with_stream: bool = True) -> None:
        self._loop.run(self._close(with_stream))

    def end(self) -> None:
        """Closes it and its loop."""
        self.close()
        self._loop.stop()

    async def _close(self, with_stream: bool) -> None:
        if self._stream is not None and with_stream:
            await self._stream.close()
        await self.client.close()


Either = Blocking | Asyncio
WAYS = ("blocking", "asyncio", "blocking stream", "asyncio stream")


def connected(way: str, url: str | Sequence[str], **options: Any) -> Either:
    """Connects in one of WAYS."""
    kind = Asyncio if way.startswith("asyncio") else Blocking
    return kind(url, way.endswith("stream"), options)
