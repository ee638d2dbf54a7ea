"""`gatefuse demo`: serves a configuration, load-tests every model of it from separate processes, stops."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gatefuse.config import ConfigError, ModelConfig, load_config
from gatefuse_kernels.expression import Program

STOP_TIMEOUT_S = 60.0
_READY = re.compile(r"ready: grpc (\S+), metrics (\S+)")
_GATEFUSE = [sys.executable, "-m", "gatefuse.cli"]


def run(config_path: Path, exact: Path, report: Path, seconds: float) -> int:
    """Returns the first exit status of the load tests that is not 0; 0 when every answer was right."""
    try:
        config = load_config(config_path)
    except ConfigError as error:
        print(f"gatefuse: {error}", file=sys.stderr)
        return 78
    report.parent.mkdir(parents=True, exist_ok=True)
    with _served(config_path) as url:
        tests = load_tests(config.models, exact, report, seconds)
        statuses = [_load_test(url, test) for test in tests]
    # Not the largest: a load test that a signal ended has a negative one.
    return next(filter(None, statuses), 0)


@dataclass(frozen=True, slots=True)
class LoadTest:
    """Models that compute the same, under the same load."""

    models: tuple[str, ...]
    arguments: tuple[str, ...]
    report: Path


def load_tests(
    models: Sequence[ModelConfig], exact: Path, report: Path, seconds: float
) -> list[LoadTest]:
    """One test for all the MLPs, whose exact answers are in a file, and one for each expression.

    Args:
        models: The configuration's.
        exact: Inputs and answers of the MLPs.
        report: The MLPs' page; an expression's is beside it, with its first model's name.
        seconds: What each model and load is measured for; expressions get half.
    """
    mlps = tuple(model.name for model in models if model.is_mlp)
    chains: dict[Program, list[str]] = {}
    for model in models:
        if not model.is_mlp:
            chains.setdefault(model.program, []).append(model.name)
    load = ("--rows", "1,16", "--concurrency", "1,8", "--seconds", str(seconds))
    tests = [LoadTest(mlps, (*load, "--exact", str(exact)), report)] if mlps else []
    load = ("--rows", "16", "--concurrency", "8", "--seconds", str(seconds / 2))
    return tests + [
        LoadTest(tuple(names), load, report.with_stem(f"{report.stem}-{names[0]}"))
        for names in chains.values()
    ]


def _load_test(url: str, test: LoadTest) -> int:
    print(f"\n{', '.join(test.models)}:", flush=True)
    command = [*_GATEFUSE, "loadtest", "--url", url, "--models", ",".join(test.models)]
    command += ["--datatype", "BF16", *test.arguments]
    command += ["--html", str(test.report), "--json", str(test.report.with_suffix(".json"))]
    return subprocess.run(command, check=False).returncode


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
