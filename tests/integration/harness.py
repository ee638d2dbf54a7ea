"""Runs the real command for a test: starts it, knows its processes and its metrics, and sees that nothing is left."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gatefuse.frontend.control_client import CONTROL_SOCKET

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKPOINT = REPOSITORY / "tiny-llama"
GATEFUSE = Path(sys.executable).with_name("gatefuse")
# Ray and torch take about eight seconds on an idle machine, several times that on a busy one.
START_S = 150.0
STOP_S = 60.0
READY = re.compile(r"^ready: grpc (\S+), metrics (\S+)$", re.MULTILINE)
COUNTER_SUFFIXES = ("_total", "_bucket", "_count", "_sum")

T = TypeVar("T")
Start: TypeAlias = Callable[[Mapping[str, Any]], "Service"]


def wait_until(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Returns the first truthy value of ``condition``; fails the test after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
    return value


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Scrape:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.series = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels; 0 where there is none."""
        wanted = labels.items()
        return sum(
            value for (found, has), value in self.series.items() if found == name and wanted <= has
        )

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The values above zero by one label."""
        values: dict[str, float] = {}
        for (found, has), value in self.series.items():
            if found == name and labels.items() <= has and value:
                key = dict(has)[label]
                values[key] = values.get(key, 0) + value
        return values

    def fallen_since(self, earlier: Scrape) -> list[str]:
        """The counters that are lower than they were, or gone: there must be none, whatever died."""
        return [
            f"{name}{dict(labels)}: {before} -> {self.series.get((name, labels))}"
            for (name, labels), before in earlier.series.items()
            if name.endswith(COUNTER_SUFFIXES)
            # A sum of floats over files may come out one unit in the last place lower.
            and self.series.get((name, labels), -1.0) < before * (1 - 1e-12)
        ]


class Service:
    """A running ``gatefuse serve``."""

    def __init__(self, folder: Path, config: Mapping[str, Any], *arguments: str) -> None:
        """Starts the command; ``wait_ready`` waits for it.

        Args:
            folder: Where the configuration and the output go.
            config: What the YAML file says. Ports that it leaves out are any free ones.
            arguments: More for the command line.
        """
        self._folder = folder
        self.url = ""
        self.metrics_url = ""
        self.run_dir: Path | None = None
        self._seen: set[psutil.Process] = set()
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump({"grpc_port": 0, "metrics_port": 0, **config}))
        command = [str(GATEFUSE), "serve", str(path), *arguments]
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err)
        self._root = psutil.Process(self.process.pid)

    @property
    def _stdout(self) -> Path:
        return self._folder / "stdout"

    @property
    def _stderr(self) -> Path:
        return self._folder / "stderr"

    @property
    def log(self) -> str:
        """What the command has written so far."""
        return self._stdout.read_text() + self.stderr

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return self._stderr.read_text()

    @property
    def port(self) -> int:
        """The gRPC port."""
        return int(self.url.rpartition(":")[2])

    def wait_ready(self) -> Service:
        """Waits for the line that says it is ready: some worker of each model is, others may still start."""

        def ready() -> re.Match[str] | None:
            self.remember()
            code = self.process.poll()
            assert code is None, f"exit {code}:\n{self.log}"
            return READY.search(self._stdout.read_text())

        line = wait_until(ready, START_S, f"ready\n{self.log}")
        assert line is not None
        self.url, self.metrics_url = line.groups()
        self.run_dir = self._find_run_dir()
        return self

    def exposition(self) -> str:
        """The text of /metrics now."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def scrape(self) -> Scrape:
        """The metrics now."""
        return Scrape(self.exposition())

    def scrape_idle(self) -> Scrape:
        """The metrics once nothing is in flight; frontends hand their counts over ten times a second."""

        def idle() -> Scrape | None:
            found = self.scrape()
            busy = found.value("gatefuse_requests_in_flight") or found.value("gatefuse_queue_rows")
            return None if busy else found

        time.sleep(0.3)
        wait_until(idle, 20, "nothing in flight and nothing queued")
        time.sleep(0.3)
        return self.scrape()

    def worker_pids(self) -> list[int]:
        """The processes that own the devices."""
        return self._actors("ray::Worker")

    def frontend_pids(self) -> list[int]:
        """The processes that clients talk to."""
        return self._actors("ray::Frontend")

    def remember(self) -> None:
        """Notes the processes there are now, so that `stop` can tell that none is left."""
        try:
            self._seen.update(self._root.children(recursive=True))
        except psutil.NoSuchProcess:
            return

    def terminate(self) -> None:
        """Asks it to drain and exit."""
        self.remember()
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self, timeout_s: float = STOP_S) -> int:
        """Its exit status; fails the test if a process or file of it is left."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{self.log}") from None
        left = psutil.wait_procs(list(self._seen), timeout=10)[1]
        left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
        described = [f"{process.pid} {process.name()}" for process in left]
        for process in left:
            process.kill()
        assert not described, f"left behind: {described}"
        assert not (self.run_dir and self.run_dir.exists()), "its folder is left behind"
        return code

    def stop(self) -> None:
        """SIGTERM; the exit status must be 0 and nothing may be left."""
        if self.process.returncode is not None:
            return
        self.terminate()
        code = self.wait_exit()
        assert code == 0, f"exit {code}:\n{self.log}"

    def kill(self) -> None:
        """Ends it and everything it started, whatever state it is in."""
        self.remember()
        for process in (self._root, *self._seen):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(10)

    def wait_complete(self) -> Service:
        """Waits until every worker of a service that is ready is ready too; without metrics it does not know."""

        def complete() -> bool:
            self.remember()
            return self.scrape().by_label("gatefuse_replicas", "state").keys() == {"ready"}

        if self.metrics_url != "off":
            wait_until(complete, START_S, f"every worker is ready\n{self.log}")
        return self

    def _find_run_dir(self) -> Path:
        """The folder that the service made for its sockets and metrics."""
        sockets = [Path(str(each.laddr)) for each in self._root.net_connections("unix")]
        (folder,) = {path.parent for path in sockets if path.name == CONTROL_SOCKET}
        return folder

    def _actors(self, title: str) -> list[int]:
        self.remember()
        found = []
        for process in self._seen:
            try:
                # While an actor runs a method, Ray has that in its title: ray::Worker.report.
                if process.is_running() and "".join(process.cmdline()[:1]).split(".")[0] == title:
                    found.append(process.pid)
            except psutil.NoSuchProcess:
                continue
        return sorted(found)


@contextmanager
def serving(folder: Path, config: Mapping[str, Any], *arguments: str) -> Iterator[Service]:
    """A service all of whose workers are ready; it is stopped afterwards, which must succeed."""
    service = Service(folder, config, *arguments)
    try:
        yield service.wait_ready().wait_complete()
        service.stop()
    finally:
        if service.process.poll() is None:
            service.kill()
