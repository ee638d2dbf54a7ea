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
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from gatefuse import __version__
from gatefuse.config import ServiceConfig

if TYPE_CHECKING:
    from gatefuse.cluster import Cluster

log = logging.getLogger(__name__)

WATCH_S = 0.5
STARTUP_POLL_S = 0.1


class StartupError(RuntimeError):
    """The service could not start; the text says why."""


def serve(config: ServiceConfig, ray_address: str | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Raises:
        ConfigError: the configuration cannot be served on this machine.
        StartupError: a worker could not load its models, or a port is taken.
    """
    run_dir = Path(tempfile.mkdtemp(prefix="gatefuse-"))
    try:
        metrics_dir = run_dir / "metrics"
        metrics_dir.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics_dir)
        os.environ.update(_ray_settings(ray_address))
        _serve_in(run_dir, config, ray_address)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _serve_in(run_dir: Path, config: ServiceConfig, ray_address: str | None) -> None:
    # prometheus_client and Ray read their environment when they are imported: it had to be set first.
    from gatefuse import metrics
    from gatefuse.cluster import Cluster

    try:
        metrics_port, endpoint, _ = metrics.serve(config.host, config.metrics_port)
    except OSError as error:
        raise StartupError(f"metrics port {config.metrics_port}: {error.strerror}") from error
    metrics.describe_build(__version__, platform.python_version(), grpc.__version__)
    cluster = Cluster(config, run_dir, ray_address)
    stop = _stop_on_signal()
    try:
        port = _wait_until_ready(cluster, stop)
        if not stop.is_set():
            print(
                f"ready: grpc {config.host}:{port}, "
                f"metrics http://{config.host}:{metrics_port}/metrics",
                flush=True,
            )
        while not stop.wait(WATCH_S):
            cluster.status()
        log.info("draining")
        cluster.stop()
    except BaseException:
        cluster.kill()
        raise
    finally:
        endpoint.shutdown()


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


def _stop_on_signal() -> threading.Event:
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)  # a second signal does not wait for the drain
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _wait_until_ready(cluster: "Cluster", stop: threading.Event) -> int:
    while not stop.is_set():
        status = cluster.status()
        if status.errors:
            raise StartupError("; ".join(dict.fromkeys(status.errors)))
        if status.ready:
            return status.port
        time.sleep(STARTUP_POLL_S)
    return 0
