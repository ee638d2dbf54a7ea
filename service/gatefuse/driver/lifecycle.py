"""`gatefuse serve` from start to exit: run folder, metrics endpoint, readiness, signals, drain."""

import logging
import os
import platform
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import grpc

from gatefuse import __version__
from gatefuse.config import ServiceConfig
from gatefuse.driver.control_server import ControlServer
from gatefuse.driver.facts import DriverFacts
from gatefuse.driver.supervisor import Supervisor
from gatefuse.logs import log_as
from gatefuse.run_folder import metrics_folder
from gatefuse.run_folder.log_relay import LogRelay
from gatefuse.run_folder.settings import LogSettings, Settings, write_settings

if TYPE_CHECKING:
    from gatefuse.driver.cluster import Cluster

log = logging.getLogger(__name__)

WATCH_S = 0.5
STARTUP_POLL_S = 0.1
# A Unix socket's path holds 107 characters, and the workers' are made in the run folder.
MAX_RUN_DIR_LENGTH = 85


class StartupError(RuntimeError):
    """The service could not start; the text says why."""


Audited = Mapping[str, tuple[float, float]]
"""Ratio and time, in seconds since 1970, of each check of an audit."""


def serve(
    config: ServiceConfig, ray_address: str | None = None, audited: Audited | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; `audited` is exported as it is.

    Raises:
        ConfigError: the configuration cannot be served on this machine.
        StartupError: a worker could not load its models, or a port is taken.
    """
    stop = _StopSignal()
    run_dir = Path(tempfile.mkdtemp(prefix="gatefuse-"))
    try:
        if len(str(run_dir)) > MAX_RUN_DIR_LENGTH:
            raise StartupError(f"sockets cannot be made in {run_dir}: set TMPDIR to a shorter path")
        with closing(LogRelay(run_dir)):
            _begin_log(run_dir, config)
            metrics_folder.prepare(run_dir, wanted=config.metrics)
            os.environ.update(_ray_settings(ray_address))
            # prometheus_client reads its environment when it is imported: it had to be set first.
            from gatefuse import metrics

            if not config.metrics:
                metrics.switch_off()
            metrics.describe_audit(audited or {})
            _serve_in(run_dir, config, ray_address, stop)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _begin_log(run_dir: Path, config: ServiceConfig) -> None:
    """Logs as configured, here and in the processes that are started later."""
    log_settings = LogSettings(log_format="json" if config.log_format == "json" else "default")
    write_settings(run_dir, Settings(log=log_settings))
    log_as(log_settings)


def _serve_in(
    run_dir: Path, config: ServiceConfig, ray_address: str | None, stop: "_StopSignal"
) -> None:
    # prometheus_client and Ray read their environment when they are imported: it had to be set first.
    from gatefuse import metrics
    from gatefuse.driver.cluster import Cluster

    # Before the first scrape: a service that never comes up is seen by workers that are still starting.
    metrics.declare_driver(config.worker_count)
    metrics.describe_build(__version__, platform.python_version(), grpc.__version__)
    endpoint = _Endpoint(config)
    try:
        cluster = Cluster(config, run_dir, ray_address)
    except SystemExit:
        return  # SIGTERM while Ray, which had taken it for itself, was starting
    stop.install()
    try:
        supervisor = Supervisor(config, run_dir, cluster)
        facts = DriverFacts(supervisor, cluster)
        endpoint.show(facts)
        metrics.this_node.models_ready = facts.models_ready
        control = ControlServer(run_dir, supervisor)
        port = _wait_until_ready(cluster, stop)
        if not stop.is_set():
            facts.grpc = f"{config.host}:{port}"
            print(f"ready: grpc {facts.grpc}, metrics {endpoint.address}", flush=True)
        _watch(cluster, stop)
        facts.draining = True
        control.shutdown()
        control.server_close()
        if port:
            log.info("draining")
            metrics.set_draining("driver", draining=True)
            cluster.stop()
        else:
            cluster.kill()
    except BaseException:
        cluster.kill()
        raise
    finally:
        endpoint.close()


class _Endpoint:
    """The metrics' port; `address` is `off` where the configuration wants none."""

    def __init__(self, config: ServiceConfig) -> None:
        from gatefuse import metrics

        self._serving = None
        self.address = "off"
        if not config.metrics:
            return
        try:
            self._serving = metrics.serve(config.host, config.metrics_port)
        except OSError as error:
            raise StartupError(f"metrics port {config.metrics_port}: {error.strerror}") from error
        self.address = f"http://{config.host}:{self._serving.port}/metrics"

    def show(self, facts: DriverFacts) -> None:
        """From now on the status page tells of the models and workers."""
        if self._serving is not None:
            self._serving.monitor.facts = facts

    def close(self) -> None:
        """Answers no more."""
        if self._serving is not None:
            self._serving.shutdown()


def _watch(cluster: "Cluster", stop: "_StopSignal") -> None:
    """Looks at the actors until a signal comes; says once what is wrong with one that was replaced."""
    reported: list[str] = []
    while not stop.wait(WATCH_S):
        errors = cluster.status().errors
        if errors and errors != reported:
            log.error("%s", "; ".join(errors))
        reported = errors


def _ray_settings(address: str | None) -> dict[str, str]:
    """Environment for Ray. A cluster of our own is closed to whoever does not know its token."""
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray runs its workers at nice 15; ours are the service.
        "RAY_worker_niceness": "0",
    }
    if address is None:
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return settings


class _StopSignal:
    """Set by SIGTERM or SIGINT; a second one does not wait for the drain."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self.install()

    def install(self) -> None:
        """Takes the signals. Ray takes SIGTERM for itself when it starts, so this is called again after it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def is_set(self) -> bool:
        """True once a signal came."""
        return self._set.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits for a signal; True when one came."""
        return self._set.wait(timeout_s)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._set.is_set():
            raise SystemExit(128 + number)
        self._set.set()


def _wait_until_ready(cluster: "Cluster", stop: _StopSignal) -> int:
    """The gRPC port, or 0 when it was told to stop before anything was ready."""
    while not stop.is_set():
        status = cluster.status()
        if status.errors:
            raise StartupError("; ".join(dict.fromkeys(status.errors)))
        if status.ready:
            return status.port
        time.sleep(STARTUP_POLL_S)
    return 0
