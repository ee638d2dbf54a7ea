"""Requests one after the other from a thread of their own, every answer looked at: what faults are tried against."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

import numpy as np

from gatefuse.client.asynchronous import AioClient, InferenceError
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.loadtest.tensors import TensorFile

LAYERS = 4
# As in test_exact.py, for every single row.
FUSED_GATE = 2.6e-3
IDENTITY_COLUMNS = 64
# A worker killed on a busy machine of two cores is back long before.
TIMEOUT_S = 60.0
PAUSE_S = 0.005


class Load:
    """`callers` at once send rows of `llama-ffn` and of `identity`, with sizes that differ, until the block ends.

    Identity rows carry a number that no other request has, so an answer that belongs to another is seen.
    """

    def __init__(self, url: str, tiny_llama: TensorFile, callers: int = 8) -> None:
        self.issued = 0
        self.answered = 0
        self.wrong: list[str] = []
        self.failed: Counter[str] = Counter()
        self._url = url
        self._layers = [
            (tiny_llama[f"layer.{layer}.input"], tiny_llama[f"layer.{layer}.output_f64"])
            for layer in range(LAYERS)
        ]
        self._callers = callers
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._broken: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits until every request has its one answer."""
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive(), "a request has no answer"
        if self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self._broken = error

    async def _all(self) -> None:
        async with AioClient(self._url, timeout_s=TIMEOUT_S, retry=NO_RETRY) as client:
            await asyncio.gather(*(self._call(client) for _ in range(self._callers)))

    async def _call(self, client: AioClient) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            kind = self._identity if number % 2 else self._llama
            self.issued += 1
            try:
                await _once(kind(client, number))
                self.answered += 1
                # The cores are shared with the worker that has to come back.
                await asyncio.sleep(PAUSE_S)
            except InferenceError as error:
                self.failed[error.code.name] += 1
                await asyncio.sleep(0.02)

    async def _identity(self, client: AioClient, number: int) -> None:
        rows = 1 + number % 13
        x = np.full((rows, IDENTITY_COLUMNS), number, np.float32)
        x[:, 0] = np.arange(rows)
        answer = (await client.infer("identity", x)).output
        if not np.array_equal(answer, x):
            self.wrong.append(f"identity {number}: {answer[:, :2].tolist()}")

    async def _llama(self, client: AioClient, number: int) -> None:
        layer = number // 2 % LAYERS
        inputs, exact = self._layers[layer]
        indices = (number + np.arange(1 + number % 40)) % len(inputs)
        result = await client.infer("llama-ffn", inputs[indices], layer=layer, datatype="BF16")
        errors = np.linalg.norm(result.output - exact[indices], axis=1)
        if (errors > FUSED_GATE * np.linalg.norm(exact[indices], axis=1)).any():
            self.wrong.append(f"llama-ffn {number}: layer {layer}, rows {indices.tolist()}")


async def _once(call: Coroutine[Any, Any, None]) -> None:
    # A client's own deadline is part of the call; beyond it there must be an answer.
    await asyncio.wait_for(call, TIMEOUT_S + 5)
