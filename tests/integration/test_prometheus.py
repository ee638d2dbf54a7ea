"""Two minutes of mixed load in front of a real Prometheus: every query of every board finds something."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deploy.grafana import draw
from deploy.grafana.boards import BOARDS
from deploy.grafana.prometheus_api import Prometheus, Span
from deploy.grafana.queries import all_queries
from tests.integration.harness import Service, serving, wait_until
from tests.integration.mixed_load import CONFIG, MixedLoad
from tests.integration.prometheus import SCRAPE_S, watching

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOAD_S = 90.0
KILL_AFTER_S = 30.0
# A new worker imports torch, loads and warms up.
RESTART_S = 60.0
WINDOW = f"{4 * SCRAPE_S}s"

# What only a machine with a GPU has: these panels are empty here, and no others.
GPU_PANELS = {
    "Kernels / Graph replays, by row bucket / 0",
    "GPU / GPU power / 0",
    "GPU / GPU temperature / 0",
    "GPU / GPU memory in use / 0",
    "GPU / Memory of the service, by kind / 0",
    "GPU / GPU in use / 0",
    "GPU / Energy / 0",
    "GPU / Slowed down, by reason / 0",
    "GPU / Memory errors / 0",
    "GPU, by the DCGM exporter / Multiprocessors and tensor cores at work / 0",
    "GPU, by the DCGM exporter / Multiprocessors and tensor cores at work / 1",
    "GPU, by the DCGM exporter / Memory interface at work / 0",
    "GPU, by the DCGM exporter / Last Xid error / 0",
}
GPU_METRIC = re.compile(
    r"(DCGM_FI|gatefuse_gpu|gatefuse_device_memory_bytes|gatefuse_graph_replays)"
)


@dataclass
class Watched:
    """A service that ran for a while under load, and the Prometheus that saw it."""

    prometheus: Prometheus
    begun_s: float
    ended_s: float
    ends: dict[str, int]

    @property
    def span(self) -> Span:
        """That time, as often as it was scraped."""
        return Span(self.begun_s, self.ended_s, SCRAPE_S)

    def empty(self, queries: dict[str, str]) -> set[str]:
        """The names of the queries that have not found one number in all that time."""
        return {name for name, text in queries.items() if not self.prometheus.over(text, self.span)}


def _audit_file(folder: Path) -> Path:
    path = folder / "audit.json"
    checks = {"launches": {"ratio": 1.0, "timestamp_s": time.time()}}
    path.write_text(json.dumps({"checks": checks}), encoding="utf-8")
    return path


def _kill_a_worker(service: Service) -> None:
    (pid,) = service.worker_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: (
            service.scrape().value("gatefuse_replicas", state="ready") == 1
            and service.worker_pids() not in ([], [pid])
        ),
        RESTART_S,
        "the worker is back",
    )


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    audit = _audit_file(folder)
    with serving(folder, CONFIG, "--audit-file", str(audit)) as service:
        begun_s = time.time()
        with watching(tmp_path_factory.mktemp("prometheus"), service.metrics_url) as prometheus:
            with MixedLoad(service.url) as load:
                time.sleep(KILL_AFTER_S)
                _kill_a_worker(service)
                time.sleep(max(0.0, begun_s + LOAD_S - time.time()))
            service.stop()
            yield Watched(prometheus, begun_s, time.time(), dict(load.ends))


def test_there_was_every_kind_of_request(watched: Watched) -> None:
    expected = {"OK", "INVALID_ARGUMENT", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert expected <= set(watched.ends), watched.ends
    assert watched.ends["OK"] > 100


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_panel_shows_something(watched: Watched, name: str) -> None:
    queries = all_queries(BOARDS[name], WINDOW)
    assert watched.empty(queries) == GPU_PANELS & set(queries)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_what_may_be_empty_is_only_what_a_gpu_has(name: str) -> None:
    queries = all_queries(BOARDS[name], WINDOW)
    of_gpus = {title for title, text in queries.items() if GPU_METRIC.search(text)}
    assert of_gpus == GPU_PANELS & set(queries)


def test_rules_are_evaluated_without_an_error(watched: Watched) -> None:
    groups = watched.prometheus.get("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert {rule["type"] for rule in rules.values()} == {"recording", "alerting"}
    for name, rule in rules.items():
        assert rule["health"] == "ok", (name, rule.get("lastError"))
    recorded = {name: name for name, rule in rules.items() if rule["type"] == "recording"}
    assert watched.empty(recorded) == set()


def test_alerts_follow_what_happened(watched: Watched) -> None:
    """The only worker's death was noticed; what did not happen was not."""
    alerts = watched.prometheus.over("ALERTS", watched.span)
    seen = {line.labels["alertname"] for line in alerts}
    assert "NoReadyReplica" in seen
    assert not seen & {"CounterDrift", "GraphMiss", "GpuXid", "RestartStorm"}


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_boards_are_drawn(watched: Watched, name: str, tmp_path: Path) -> None:
    minutes = (watched.ended_s - watched.begun_s) / 60
    words = [name, "--prometheus", watched.prometheus.url, "--output", str(tmp_path)]
    words += ["--minutes", str(minutes), "--until", str(watched.ended_s)]
    words += ["--set", "bandwidth=2e10"]
    assert draw.main(words) == 0
    picture = (tmp_path / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert 10_000 < len(picture) < 300_000
