"""The process that clients talk to: one event loop with the gRPC server, the dispatcher and a link per worker."""

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from gatefuse import metrics
from gatefuse.batching.batcher import Limits
from gatefuse.config import ModelConfig, ServiceConfig
from gatefuse.frontend.control_client import CONTROL_SOCKET, ControlClient
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.dispatch.worker_link import WorkerLink
from gatefuse.frontend.dispatch.worker_links import WorkerLinks
from gatefuse.frontend.limits import limits_of
from gatefuse.frontend.server import Server
from gatefuse.frontend.servicer import Control, Servicer
from gatefuse.frontend.shared_memory import Regions, Registry
from gatefuse.frontend.statistics import StatisticsBook
from gatefuse.frontend.telemetry.listeners import FrontendTelemetry
from gatefuse.logs import log_as
from gatefuse.run_folder.roster import Roster, read_roster
from gatefuse.run_folder.settings import Settings, read_settings

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

    def __init__(
        self, config: ServiceConfig, worker_sockets: Sequence[str], name: str = "frontend-0"
    ) -> None:
        """Begins to listen and to connect to the workers.

        `name` is what it is called in metrics; a process that replaces this one has the same.
        """
        self._config = config
        self._name = name
        self._worker_sockets = [Path(path) for path in worker_sockets]
        self._run_dir = self._worker_sockets[0].parent
        log_as(read_settings(self._run_dir).log, name, self._run_dir)
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

    def update(self, roster: str, changed: Sequence[str] = (), finished: str = "") -> None:
        """Serves what the roster, as JSON, says from now on.

        `changed` are the workers, by the names of their sockets, that serve other models than before; `finished` is the
        key of a load that requests got until now: returns when none has it any more.
        """
        try:
            self._started.result()
        except RuntimeError:
            return  # it serves nothing
        self._on_loop(self._update(Roster.read_again(roster), changed, finished))

    def set(self, settings: str) -> None:
        """Logs and traces as the settings, as JSON, say from now on."""
        try:
            self._started.result()
        except RuntimeError:
            return
        self._on_loop(self._set(Settings.model_validate_json(settings)))

    async def _set(self, settings: Settings) -> None:
        log_as(settings.log, self._name, self._run_dir)
        self._servicer.settings.current = settings
        self._telemetry.configure(settings)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._start())
        self._loop.run_forever()

    def _on_loop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        if self._config.metrics:
            metrics.declare_frontend(self._name, metrics.LoopLag(self._loop).largest_s)
        else:
            metrics.switch_off()
        statistics = StatisticsBook(self._run_dir)
        self._dispatcher = Dispatcher(self._loop, statistics=statistics)
        self._limits: dict[str, Limits] = {}
        self._timeouts_s: dict[str, float] = {}
        self._regions = self._open_regions()
        self._servicer = Servicer(
            self._dispatcher,
            self._timeouts_s,
            self._config.max_message_bytes,
            self._regions,
            self._control(),
        )
        self._note_models(read_roster(self._run_dir))
        self._server = Server(self._servicer, self._config)
        self._servicer.settings.current = settings = read_settings(self._run_dir)
        try:
            observer = self._servicer.catalogue.observer
            self._telemetry = FrontendTelemetry(self._config, settings, observer)
            self._dispatcher.batch_traces = self._telemetry.batch_traces
            port = await self._server.start()
        except (OSError, RuntimeError) as error:
            self._started.set_exception(RuntimeError(str(error)))
            return
        self._links = WorkerLinks(self._worker_sockets, self._make_link)
        self._servicer.catalogue.serving = self._links.serving
        self._links.open()
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
            self._links.kill_if_hung(time.monotonic())
            if self._regions is not None:
                self._regions.sweep()
            metrics.flush()
            self._telemetry.flush()
            await asyncio.sleep(WATCH_S)

    async def _update(self, roster: Roster, changed: Sequence[str], finished: str) -> None:
        for entry in roster.entries:
            self._limits[entry.key] = limits_of(entry.config)
        if changed:
            await self._links.refresh(changed)
        self._note_models(roster)
        if finished:
            await self._dispatcher.finish(finished, self._config.drain_timeout_s)
            self._limits.pop(finished, None)

    def _note_models(self, roster: Roster | None) -> None:
        """From now on requests get the loads of the roster; without one, what is configured."""
        if roster is None:
            configs = {model.name: model for model in self._config.models}
        else:
            configs = {entry.key: entry.config for entry in roster.entries if entry.is_loaded}
            self._dispatcher.choose({config.name: key for key, config in configs.items()})
            self._servicer.catalogue.roster = roster
            self._timeouts_s.update(_timeouts_s(entry.config for entry in roster.entries))
        self._limits.update({key: limits_of(config) for key, config in configs.items()})
        self._timeouts_s.update(_timeouts_s(configs.values()))

    def _make_link(self, path: Path) -> WorkerLink:
        timeout_s = self._config.batch_timeout_s
        return WorkerLink(path, self._dispatcher, self._loop, self._limits.get, timeout_s)

    def _control(self) -> Control:
        """What clients may change, all of it through the driver."""
        client = ControlClient(self._run_dir / CONTROL_SOCKET)
        models = client if self._config.model_control == "explicit" else None
        return Control(
            client, models, self._config.trace_file.name if self._config.trace_file else ""
        )

    def _open_regions(self) -> Regions | None:
        """The clients' shared memory, the same for all frontends; None where that is off."""
        if not self._config.allow_client_shm:
            return None
        return Regions(Registry(self._run_dir / "regions"))

    async def _drain(self) -> None:
        metrics.set_draining(self._name, draining=True)
        self._servicer.leave()
        await self._server.set_serving(False)
        await asyncio.sleep(self._config.drain_delay_s)
        await self._dispatcher.drain(self._config.drain_timeout_s)
        self._servicer.close_streams()
        await self._server.stop(grace_s=1.0)
        self._watch_task.cancel()
        metrics.flush()
        await self._telemetry.close()
        self._links.close()


def _timeouts_s(models: Iterable[ModelConfig]) -> dict[str, float]:
    return {model.name: model.batching.default_timeout_ms / 1e3 for model in models}
