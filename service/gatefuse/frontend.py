"""The process that clients talk to: one event loop with the gRPC server, the dispatcher and a link per worker."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from gatefuse import metrics
from gatefuse.batcher import Limits
from gatefuse.config import ModelConfig, ServiceConfig
from gatefuse.dispatcher import Dispatcher
from gatefuse.server import Server
from gatefuse.servicer import Servicer
from gatefuse.worker_link import WorkerLink

WATCH_S = 0.1
# Requests leave no cycles behind: looking for some after every 700 allocations would only add latency.
GC_THRESHOLD = 50_000


@dataclass(frozen=True, slots=True)
class FrontendReport:
    """What a frontend tells its supervisor; `port` is 0 until it listens."""

    pid: int
    port: int
    ready: bool
    error: str = ""


class Frontend:
    """The actor. Its event loop has a thread of its own; control calls come on others."""

    def __init__(self, config: ServiceConfig, worker_sockets: Sequence[str]) -> None:
        """Begins to listen and to connect to the workers."""
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s frontend %(levelname)s %(message)s"
        )
        self._config = config
        self._worker_sockets = [Path(path) for path in worker_sockets]
        self._loop = uvloop.new_event_loop()
        self._started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._ready = False
        threading.Thread(target=self._run, name="event-loop", daemon=True).start()

    def report(self) -> FrontendReport:
        """The state now."""
        if not self._started.done():
            return FrontendReport(os.getpid(), 0, False)
        if (error := self._started.exception()) is not None:
            return FrontendReport(os.getpid(), 0, False, str(error))
        return FrontendReport(os.getpid(), self._started.result(), self._ready)

    def drain(self) -> None:
        """Refuses new work, answers what was accepted, closes the port."""
        self._on_loop(self._drain())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._start())
        self._loop.run_forever()

    def _on_loop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        metrics.declare_frontend()
        self._dispatcher = Dispatcher(self._loop)
        timeouts_s = {m.name: m.batching.default_timeout_ms / 1e3 for m in self._config.models}
        self._servicer = Servicer(self._dispatcher, timeouts_s, self._config.max_message_bytes)
        self._server = Server(self._servicer, self._config)
        try:
            port = await self._server.start()
        except RuntimeError as error:
            self._started.set_exception(error)
            return
        limits = {model.name: _limits(model) for model in self._config.models}
        self._links = [
            WorkerLink(
                path, self._dispatcher, self._loop, limits.__getitem__, self._config.batch_timeout_s
            )
            for path in self._worker_sockets
        ]
        for link in self._links:
            link.open()
        self._watch_task = self._loop.create_task(self._watch())
        # What start-up made lives as long as the process: the collector need not look at it again.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        self._started.set_result(port)

    async def _watch(self) -> None:
        """Keeps health in step with readiness, and kills workers that are silent for too long."""
        while True:
            ready = self._servicer.ready
            if ready != self._ready:
                await self._server.set_serving(ready)
                self._ready = ready
            for link in self._links:
                link.kill_if_hung(time.monotonic())
            metrics.flush()
            await asyncio.sleep(WATCH_S)

    async def _drain(self) -> None:
        self._servicer.leaving = True
        await self._server.set_serving(False)
        await asyncio.sleep(self._config.drain_delay_s)
        await self._dispatcher.drain(self._config.drain_timeout_s)
        await self._server.stop(grace_s=1.0)
        self._watch_task.cancel()
        metrics.flush()
        for link in self._links:
            link.close()


def _limits(model: ModelConfig) -> Limits:
    batching = model.batching
    return Limits(
        batching.max_batch_rows, batching.max_queue_rows, batching.max_queue_delay_us / 1e6
    )
