"""Requests of every kind, good and bad, so that every panel has something to show."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import numpy as np
from tests.integration.harness import CHECKPOINT

from gatefuse.client.asynchronous import AioClient, InferenceError
from gatefuse.client.transport.retry import NO_RETRY

MLP_COLUMNS = 256
CHAIN_COLUMNS = 2048
QUEUE_ROWS = 256
# The same weights and the same chain, each fused and eager. The queues are short, so that some are refused.
CONFIG: dict[str, Any] = {
    "device": "cpu",
    "worker_threads": 1,
    "drain_delay_s": 4,
    "models": [
        {
            "name": "llama-ffn",
            "checkpoint": str(CHECKPOINT),
            "backend": "fused",
            "layers": [0],
            "batching": {"max_batch_rows": 64, "max_queue_rows": QUEUE_ROWS},
        },
        {"name": "llama-ffn-eager", "like": "llama-ffn", "backend": "eager"},
        {
            "name": "residual",
            "kind": "elementwise",
            "expression": "gelu(x) * scale + x",
            "constants": {"scale": 0.5},
            "columns": CHAIN_COLUMNS,
            "dtype": "fp32",
            "backend": "fused",
            "batching": {"max_batch_rows": 64, "max_queue_rows": QUEUE_ROWS},
        },
        {"name": "residual-eager", "like": "residual", "backend": "eager"},
    ],
}
COLUMNS = {
    "llama-ffn": MLP_COLUMNS,
    "llama-ffn-eager": MLP_COLUMNS,
    "residual": CHAIN_COLUMNS,
    "residual-eager": CHAIN_COLUMNS,
}
# Of each hundred requests of a caller: too little time, too wide, given up, and the rest good.
EXPIRED, INVALID, GIVEN_UP = 3, 6, 9
CALLERS = 6
TIMEOUT_S = 30.0
PAUSE_S = 0.01


class MixedLoad:
    """Callers that send until the block ends. `ends` counts how requests ended, by status, as the clients saw it."""

    def __init__(self, url: str) -> None:
        self.ends: Counter[str] = Counter()
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits until every request has ended."""
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive(), "a request has no answer"

    async def _all(self) -> None:
        async with AioClient(self._url, timeout_s=TIMEOUT_S, retry=NO_RETRY) as client:
            callers = [self._call(client, seed) for seed in range(CALLERS)]
            await asyncio.gather(*callers, self._burst(client))

    async def _call(self, client: AioClient, seed: int) -> None:
        random = np.random.default_rng(seed)
        models = list(COLUMNS)
        while not self._stop.is_set():
            model = models[random.integers(len(models))]
            rows = int(2 ** random.integers(7)) - int(random.integers(2))
            await self._one(client, model, max(1, rows), int(random.integers(100)))
            await asyncio.sleep(PAUSE_S)

    async def _burst(self, client: AioClient) -> None:
        """More rows at once than the queue takes, now and then."""
        while not self._stop.is_set():
            await asyncio.gather(*(self._one(client, "residual-eager", 100, 99) for _ in range(8)))
            await asyncio.sleep(3)

    async def _one(self, client: AioClient, model: str, rows: int, kind: int) -> None:
        columns = COLUMNS[model] + (EXPIRED <= kind < INVALID)
        x = np.ones((rows, columns), np.float32)
        datatype = "BF16" if model.startswith("llama") else None
        timeout_s = 0.0015 if kind < EXPIRED else None
        call = asyncio.ensure_future(client.infer(model, x, datatype=datatype, timeout_s=timeout_s))
        if INVALID <= kind < GIVEN_UP:
            await asyncio.sleep(0.002)
            call.cancel()
        try:
            await call
            self.ends["OK"] += 1
        except InferenceError as error:
            self.ends[error.code.name] += 1
        except asyncio.CancelledError:
            self.ends["CANCELLED"] += 1
