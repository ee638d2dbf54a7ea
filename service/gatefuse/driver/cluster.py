"""Places the actors, watches over them, and takes them down. Ray is used here and nowhere else.

Ray starts processes, gives each worker its device and starts again whatever dies. No tensor goes through it.
"""

import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gatefuse import metrics
from gatefuse.config import ConfigError, ModelConfig, ServiceConfig
from gatefuse.driver.members import FrontendMember, Member, WorkerMember
from gatefuse.driver.placement import place
from gatefuse.frontend.process import Frontend
from gatefuse.malloc import KEEP_BIG_BLOCKS
from gatefuse.metrics.node import DRIVER
from gatefuse.run_folder import metrics_folder
from gatefuse.run_folder.roster import Entry, Roster, write_roster
from gatefuse.run_folder.settings import Settings
from gatefuse.run_folder.slots import device_label, socket_name, worker_name
from gatefuse.status.facts import WorkerFacts
from gatefuse.worker.process import Worker

log = logging.getLogger(__name__)

REPORT_TIMEOUT_S = 2.0
# Calls that one process answers at once: a report while it loads a model, while the next is asked for.
CONTROL_CALLS = 4


@dataclass(slots=True)
class ClusterStatus:
    """One look at all actors."""

    ready: bool
    port: int
    errors: list[str] = field(default_factory=list)


class Cluster:
    """The workers and frontends of one service on this node."""

    def __init__(self, config: ServiceConfig, run_dir: Path, ray_address: str | None) -> None:
        """Starts or joins Ray and creates the actors; `run_dir` holds sockets and metric files.

        Raises:
            ConfigError: the models cannot be placed on the devices there are.
        """
        self._config = _with_fixed_port(config)
        self._run_dir = run_dir
        with metrics_folder.hidden():
            _start_ray(ray_address, own_log=config.log_format == "text")
        self._device = self._choose_device()
        try:
            placement = place(config.models, config.worker_count)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self.roster = _roster(placement, config.models)
        if config.model_control == "explicit":
            write_roster(run_dir, self.roster)  # before any process could miss it
        self._workers = [self._start_worker(i, models) for i, models in enumerate(placement)]
        sockets = [str(worker.socket_path) for worker in self._workers]
        self._frontends = [self._start_frontend(i, sockets) for i in range(config.frontends)]

    def status(self) -> ClusterStatus:
        """Asks every actor, counts restarts, tells the metrics of every process and device."""
        errors: list[str] = []
        # Of one whose process has ended there may be no report for long: told of first.
        if gone := [worker for worker in self._workers if worker.is_gone()]:
            for worker in gone:
                worker.silent()
            self._show()
        worker_reports = _reports(self._workers)
        for member, report in zip(self._workers, worker_reports, strict=True):
            member.note(report, errors)
        frontend_reports = _reports(self._frontends)
        port = 0
        ready = True
        for frontend, report in zip(self._frontends, frontend_reports, strict=True):
            frontend.note(report, errors)
            port = report.port if report is not None else port
            ready = ready and report is not None and report.ready
        self._show()
        return ClusterStatus(ready, port, errors)

    def workers(self) -> tuple[WorkerFacts, ...]:
        """Every worker, as it was when its status was last asked for."""
        return tuple(
            WorkerFacts(slot, member.state, device_label(self._device, slot), member.restarts)
            for slot, member in enumerate(self._workers)
        )

    def pids(self) -> dict[str, int]:
        """This process and the actors', by name, as they were when their status was last asked for."""
        members = (*self._frontends, *self._workers)
        return {DRIVER: os.getpid(), **{each.name: each.pid for each in members if each.pid}}

    def _show(self) -> None:
        if not self._config.metrics:
            return
        metrics.set_replicas(Counter(member.state for member in self._workers))
        metrics.this_node.look_at(
            self.pids(),
            {
                device_label(self._device, slot): member.owner
                for slot, member in enumerate(self._workers)
                if member.owner is not None
            },
        )

    def load(self, worker: str, entry: Entry) -> str:
        """Loads a model on the worker with that socket; returns why it failed, else nothing."""
        member = self._worker(worker)
        try:
            failure: str = ray.get(member.actor.load.remote(entry.model_dump_json()))
        except RayActorError:
            return "the worker died"
        return failure

    def unload(self, worker: str, index: int) -> None:
        """Frees a model on a worker; one that is not there serves it no more."""
        with contextlib.suppress(RayActorError):
            ray.get(self._worker(worker).actor.unload.remote(index))

    def update(self, roster: Roster, changed: Sequence[str] = (), finished: str = "") -> None:
        """Tells every frontend what is loaded; see `Frontend.update`. One that is not there reads the roster's file."""
        text = roster.model_dump_json()
        pending = [
            member.actor.update.remote(text, tuple(changed), finished) for member in self._frontends
        ]
        for reply in pending:
            with contextlib.suppress(RayActorError):
                ray.get(reply)

    def set(self, settings: Settings) -> None:
        """Has every process log and trace so; one that is not there reads the settings' file."""
        text = settings.model_dump_json()
        pending = [m.actor.set.remote(text) for m in (*self._frontends, *self._workers)]
        for reply in pending:
            with contextlib.suppress(RayActorError):
                ray.get(reply)

    def stop(self) -> None:
        """Drains the frontends, then ends every actor and, where this process started it, Ray."""
        states = ["draining" if each.state == "ready" else each.state for each in self._workers]
        metrics.set_replicas(Counter(states))
        pending = [member.actor.drain.remote() for member in self._frontends]
        limit_s = self._config.drain_delay_s + self._config.drain_timeout_s + 5
        for reply in pending:
            try:
                ray.get(reply, timeout=limit_s)
            except (RayActorError, GetTimeoutError) as error:
                log.warning("a frontend did not drain: %s", type(error).__name__)
        self.kill()

    def kill(self) -> None:
        """Ends everything at once."""
        for member in (*self._frontends, *self._workers):
            ray.kill(member.actor, no_restart=True)
        ray.shutdown()

    def _worker(self, socket_name: str) -> WorkerMember:
        return next(each for each in self._workers if each.socket_path.name == socket_name)

    def _choose_device(self) -> str:
        gpus = int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]
        needed = self._config.worker_count
        device = self._config.device
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        if device == "cuda" and gpus < needed:
            raise ConfigError(f"{needed} workers need a GPU each, Ray finds {gpus}")
        return device

    def _start_worker(self, index: int, models: Any) -> WorkerMember:
        path = self._run_dir / socket_name(index)
        options = {**_pinned_here(), "num_gpus": 1 if self._device == "cuda" else 0}
        threads, table = self._worker_threads(), self._config.plan_table
        actor = (
            ray.remote(Worker)
            .options(**options)
            .remote(str(path), tuple(models), self._device, threads, table)
        )
        return WorkerMember(worker_name(index), actor, socket_path=path)

    def _start_frontend(self, index: int, sockets: list[str]) -> FrontendMember:
        variables = {**KEEP_BIG_BLOCKS, **metrics_folder.variables()}
        options = {**_pinned_here(), "num_gpus": 0, "runtime_env": {"env_vars": variables}}
        name = f"frontend-{index}"
        actor = ray.remote(Frontend).options(**options).remote(self._config, sockets, name)
        return FrontendMember(name, actor)

    def _worker_threads(self) -> int:
        if self._config.worker_threads is not None:
            return self._config.worker_threads
        cores = len(os.sched_getaffinity(0))
        return max(1, (cores - self._config.frontends) // self._config.worker_count)


def _roster(placement: Sequence[Sequence[ModelConfig]], models: Sequence[ModelConfig]) -> Roster:
    """What is loaded at the start."""
    entries = []
    for index, model in enumerate(models):
        workers = [socket_name(n) for n, placed in enumerate(placement) if model in placed]
        entries.append(Entry(config=model, index=index, replicas=tuple(workers)))
    return Roster(entries=tuple(entries))


def _with_fixed_port(config: ServiceConfig) -> ServiceConfig:
    """Picks the port where the configuration leaves it open: a frontend that is replaced must come back on its port."""
    if config.grpc_port:
        return config
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.create_server((config.host.strip("[]"), 0), family=family) as sock:
        return config.with_overrides({"grpc_port": sock.getsockname()[1]})


def _start_ray(address: str | None, *, own_log: bool) -> None:
    """Starts or joins Ray; with `own_log` its lines look as Ray makes them, else as the service's own."""
    if address is None:
        ray.init(
            include_dashboard=False,
            num_cpus=0,  # actors ask for none, and for each core Ray would keep a spare process
            _node_ip_address="127.0.0.1",
            object_store_memory=100 * 2**20,
            log_to_driver=True,
            configure_logging=own_log,
        )
    else:
        ray.init(address=address, log_to_driver=True, configure_logging=own_log)


def _pinned_here() -> dict[str, Any]:
    """Every actor of a cell runs on this node, and is started again for as long as the service lives."""
    node = ray.get_runtime_context().get_node_id()
    return {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": CONTROL_CALLS,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
    }


def _reports(members: Sequence[Member]) -> list[Any]:
    """Each member's report, None where none came in time."""
    asked = [member.actor.report.remote() for member in members]
    reports: list[Any] = []
    for reply in asked:
        try:
            reports.append(ray.get(reply, timeout=REPORT_TIMEOUT_S))
        except (RayActorError, GetTimeoutError):
            reports.append(None)
    return reports
