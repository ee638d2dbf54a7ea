"""`gatefuse demo`: serves a configuration, load-tests every model of it from a separate process, stops."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gatefuse.config import ConfigError, load_config

STOP_TIMEOUT_S = 60.0
_READY = re.compile(r"ready: grpc (\S+), metrics (\S+)")
_GATEFUSE = [sys.executable, "-m", "gatefuse.cli"]


def run(config_path: Path, exact: Path, report: Path, seconds: float) -> int:
    """Returns the load test's exit status: 0 when every answer was right."""
    try:
        config = load_config(config_path)
    except ConfigError as error:
        print(f"gatefuse: {error}", file=sys.stderr)
        return 78
    names = ",".join(model.name for model in config.models if model.is_mlp)
    report.parent.mkdir(parents=True, exist_ok=True)
    with _served(config_path) as url:
        command = [*_GATEFUSE, "loadtest", "--url", url, "--models", names]
        command += ["--rows", "1,16", "--concurrency", "1,8", "--seconds", str(seconds)]
        command += ["--datatype", "BF16", "--exact", str(exact)]
        command += ["--html", str(report), "--json", str(report.with_suffix(".json"))]
        status = subprocess.run(command, check=False).returncode
    print(f"report: {report}")
    return status


@contextmanager
def _served(config_path: Path) -> Iterator[str]:
    """A server in a process of its own, on free ports; gives its HOST:PORT, and drains it at the end."""
    command = [*_GATEFUSE, "serve", str(config_path), "--grpc-port", "0", "--metrics-port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_until_ready(server)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if (match := _READY.search(line)) is not None:
            return match[1]
    raise SystemExit("gatefuse: the server stopped before it was ready")
