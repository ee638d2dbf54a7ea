"""Buffers equal what they stand for, and the endpoint is the sum of all processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gatefuse.metrics import buffers, families

# A series, its labels, and what each share of a frontend adds to it.
Share = tuple[str, dict[str, str], float]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

BOUNDS = families.SHORT_BUCKETS_S
# Sums of these are exact in any order, so both texts must be the same to the last digit.
exact = st.integers(0, 2**20).map(lambda number: number / 2**16)
on_an_edge = st.sampled_from([float(bound) for bound in (1, 10)])


@pytest.fixture(autouse=True)
def flushers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Buffers of these tests must not be flushed by later ones."""
    mine: list[object] = []
    monkeypatch.setattr(buffers, "_flushers", mine)
    return mine


def _exposed(registry: CollectorRegistry) -> str:
    """The exposition text, without the times at which series were made."""
    lines = generate_latest(registry).decode().splitlines()
    return "\n".join(line for line in lines if "_created" not in line)


def _histogram() -> tuple[CollectorRegistry, Histogram]:
    registry = CollectorRegistry()
    return registry, Histogram("wait", "Seconds.", ["model"], buckets=BOUNDS, registry=registry)


def test_bounds_are_counted_as_prometheus_does() -> None:
    # At a bound, just above it, beyond the last: each its own bucket.
    values = [value for bound in BOUNDS for value in (bound, bound * 1.001)] + [0.0, 1e9]
    (direct_registry, direct), (buffered_registry, family) = _histogram(), _histogram()
    buffer = buffers.buffered_histogram(family, BOUNDS)("a")
    for value in values:
        direct.labels("a").observe(value)
        buffer.observe(value)
    buffers.flush_all()
    strip = [line for line in _exposed(direct_registry).splitlines() if "wait_sum" not in line]
    got = [line for line in _exposed(buffered_registry).splitlines() if "wait_sum" not in line]
    assert got == strip


@settings(deadline=None)
@given(st.lists(st.lists(st.one_of(exact, on_an_edge), max_size=20), min_size=1, max_size=4))
def test_a_flushed_histogram_is_what_observe_gives(rounds: list[list[float]]) -> None:
    (direct_registry, direct), (buffered_registry, family) = _histogram(), _histogram()
    buffer = buffers.buffered_histogram(family, BOUNDS)("a")
    direct.labels("a")
    for values in rounds:
        for value in values:
            direct.labels("a").observe(value)
            buffer.observe(value)
        buffers.flush_all()
        assert _exposed(buffered_registry) == _exposed(direct_registry)


@settings(deadline=None)
@given(st.lists(st.lists(exact, max_size=5), min_size=1, max_size=4))
def test_a_flushed_counter_is_what_inc_gives(rounds: list[list[float]]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    direct, family = (Counter("rows", "Rows.", ["m"], registry=each) for each in registries)
    lookup = buffers.buffered_counter(family)
    direct.labels("a")
    lookup("a")
    for amounts in rounds:
        for amount in amounts:
            direct.labels("a").inc(amount)
            lookup("a").inc(amount)
        direct.labels("b").inc()
        lookup("b").inc()
        buffers.flush_all()
        buffers.flush_all()
        assert _exposed(registries[1]) == _exposed(registries[0])


def test_nothing_shows_before_a_flush() -> None:
    registry = CollectorRegistry()
    buffer = buffers.buffered_counter(Counter("rows", "Rows.", ["m"], registry=registry))("a")
    buffer.inc(3)
    assert registry.get_sample_value("rows_total", {"m": "a"}) == 0
    buffers.flush_all()
    assert registry.get_sample_value("rows_total", {"m": "a"}) == 3


def test_equal_labels_share_a_buffer(flushers: list[object]) -> None:
    lookup = buffers.buffered_counter(Counter("rows", "Rows.", ["m"], registry=CollectorRegistry()))
    assert lookup("a") is lookup("a")
    assert lookup("a") is not lookup("b")
    assert len(flushers) == 2


FRONTEND = """
import sys
from gatefuse import metrics
from gatefuse.link.messages import DoneMessage, Status
from gatefuse_kernels.ledger import Entry
from tests.service.fakes import MLP

share = int(sys.argv[1])
metrics.declare_frontend(f"frontend-{share}", lambda: share / 4)
rpc = metrics.RpcMetrics("ModelInfer")
model = metrics.ModelMetrics(MLP, 100 * share)
model.meet_device("cuda:0")
metrics.watch_queue(MLP.name, lambda: 10 * share)
for _ in range(share):
    rpc.started()
    rpc.finished("OK", "ok", 0.003)
    rpc.started()
    model.accepted(5, 40)
    model.answered(3, 0.25, 24)
    model.dropped(2)
    model.sealed(5, 1, "idle")
    entries = (Entry("gate_up", "graph", 2, 300, 20, 7), Entry("down", "eager", 1, 5, 6, 0))
    done = DoneMessage(Status.OK, 0, 8, 0, 0.25, 0.125, entries)
    model.computed("cuda:0", 5, (30, 20), done, 0.5)
metrics.shed("ModelInfer", "deadline")
metrics.invalid("shape")
metrics.caller_left("queued")
metrics.call_ended_badly("died", 0.5)
metrics.flush()
print("counted", flush=True)
sys.stdin.read()
"""
SUPERVISOR = """
import sys
from prometheus_client.metrics_core import GaugeMetricFamily
from gatefuse import metrics

metrics.declare_driver(3)

class Heat:
    def collect(self):
        yield from metrics.this_node.collect()
        family = GaugeMetricFamily("gatefuse_gpu_temperature_celsius", "Heat.", labels=["device"])
        family.add_metric(["cuda:0"], 61)
        yield family

metrics.describe_build("1", "2", "3")
metrics.replica_restarted("hang")
served = metrics.serve("127.0.0.1", 0, Heat())
print(served.port, flush=True)
for line in sys.stdin:
    if line.strip() == "started":
        metrics.set_replicas({"ready": 2, "dead": 1})
    else:
        metrics.process_died(int(line))
    print("noted", flush=True)
served.shutdown()
"""
ROOT = Path(__file__).parents[3]


class Process:
    """A process of the service that says a line when it is done with its part."""

    def __init__(self, program: str, folder: Path, *arguments: str) -> None:
        environment = {
            **os.environ,
            "PROMETHEUS_MULTIPROC_DIR": str(folder),
            "PYTHONPATH": str(ROOT),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.line = self._process.stdout.readline().strip()

    def tell(self, line: str) -> str:
        """Writes a line; returns the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """At once, as a crash would."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> int:
        """By the end of its input; returns the exit status."""
        self._process.communicate()
        return self._process.returncode


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    """A supervisor with the endpoint, a frontend that counted one request, and one that counted two."""
    started = [
        Process(SUPERVISOR, tmp_path),
        Process(FRONTEND, tmp_path, "1"),
        Process(FRONTEND, tmp_path, "2"),
    ]
    yield started
    assert started[0].end() == 0
    for process in started[1:]:
        process.kill()


def _scrape(port: str) -> Series:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _status(port: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=10) as response:
        told: dict[str, Any] = json.load(response)
    return told


def _of(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, tuple(sorted(labels.items()))))


MODEL = {"model": "ffn", "backend": "fused"}
LIVE_GAUGES: tuple[Share, ...] = (
    ("gatefuse_requests_in_flight", {"method": "ModelInfer"}, 1),
    ("gatefuse_queue_rows", {"model": "ffn"}, 10),
    ("gatefuse_queue_capacity_rows", {"model": "ffn"}, 100),
)
COUNTERS: tuple[Share, ...] = (
    ("gatefuse_requests_total", {"method": "ModelInfer", "code": "OK"}, 1),
    ("gatefuse_request_duration_seconds_count", {"method": "ModelInfer", "outcome": "ok"}, 1),
    ("gatefuse_request_rows_sum", MODEL, 5),
    ("gatefuse_batch_rows_count", MODEL, 1),
    ("gatefuse_batches_total", {"trigger": "idle"}, 1),
    ("gatefuse_batch_padding_rows_total", MODEL, 3),
    ("gatefuse_replica_call_seconds_count", {"outcome": "ok"}, 1),
    ("gatefuse_replica_overhead_seconds_sum", {}, 0.25),
    ("gatefuse_device_busy_seconds_total", {**MODEL, "device": "cuda:0"}, 0.125),
    ("gatefuse_kernel_launches_total", {**MODEL, "kernel": "gate_up", "mode": "graph"}, 2),
    ("gatefuse_kernel_launches_total", {**MODEL, "kernel": "down", "mode": "eager"}, 1),
    ("gatefuse_graph_replays_total", {**MODEL, "bucket": "8"}, 1),
    (
        "gatefuse_dram_bytes_modelled_total",
        {**MODEL, "kernel": "gate_up", "direction": "read"},
        300,
    ),
    (
        "gatefuse_dram_bytes_modelled_total",
        {**MODEL, "kernel": "gate_up", "direction": "write"},
        20,
    ),
    ("gatefuse_flops_modelled_total", {**MODEL, "kernel": "gate_up"}, 7),
    ("gatefuse_device_batch_seconds_sum", {**MODEL, "bucket": "16"}, 0.125),
    ("gatefuse_device_batch_seconds_count", {**MODEL, "bucket": "16"}, 1),
    ("gatefuse_rows_total", {**MODEL, "outcome": "answered"}, 3),
    ("gatefuse_rows_total", {**MODEL, "outcome": "dropped"}, 2),
    ("gatefuse_transfer_bytes_total", {"hop": "grpc_in"}, 40),
    ("gatefuse_transfer_bytes_total", {"hop": "grpc_out"}, 24),
    ("gatefuse_transfer_bytes_total", {"hop": "to_replica"}, 30),
    ("gatefuse_transfer_bytes_total", {"hop": "h2d"}, 30),
    ("gatefuse_transfer_bytes_total", {"hop": "from_replica"}, 20),
    ("gatefuse_transfer_bytes_total", {"hop": "d2h"}, 20),
)


def test_the_endpoint_sums_processes_and_forgets_only_gauges_of_the_dead(
    processes: list[Process],
) -> None:
    supervisor, one, two = processes
    assert (one.line, two.line) == ("counted", "counted")
    series = _scrape(supervisor.line)
    for name, labels, share in (*COUNTERS, *LIVE_GAUGES):
        assert _of(series, name, **labels) == 3 * share, (name, labels)
    for name, labels in (
        ("gatefuse_requests_shed_total", {"method": "ModelInfer", "reason": "deadline"}),
        ("gatefuse_requests_invalid_total", {"reason": "shape"}),
        ("gatefuse_cancelled_total", {"phase": "queued"}),
        ("gatefuse_replica_call_seconds_count", {"outcome": "died"}),
    ):
        assert _of(series, name, **labels) == 2
    # Known series are there from the start, at zero.
    for method in ("ModelInfer", "ModelStreamInfer"):
        shed = {"method": method, "reason": "unloaded"}
        assert _of(series, "gatefuse_requests_shed_total", **shed) == 0
    assert _of(series, "gatefuse_batches_total", trigger="drain") == 0
    # Workers are told of before anything was heard of them.
    assert _of(series, "gatefuse_replicas", state="starting") == 3
    assert _of(series, "gatefuse_replicas", state="ready") == 0
    assert _of(series, "gatefuse_replica_restarts_total", cause="hang") == 1
    assert _of(series, "gatefuse_replica_restarts_total", cause="gpu") == 0
    assert _of(series, "gatefuse_build_info", version="1", python="2", grpc="3") == 1
    # A series of each process' own is no sum.
    for slot in (1, 2):
        lag_s = _of(series, "gatefuse_event_loop_lag_seconds", process=f"frontend-{slot}")
        assert lag_s == slot / 4
        assert _of(series, "gatefuse_drain_state", process=f"frontend-{slot}") == 0

    supervisor.tell("started")
    series = _scrape(supervisor.line)
    assert _of(series, "gatefuse_replicas", state="ready") == 2
    assert _of(series, "gatefuse_replicas", state="starting") == 0

    two.kill()
    assert supervisor.tell(str(two.pid)) == "noted"
    series = _scrape(supervisor.line)
    for name, labels, share in COUNTERS:
        assert _of(series, name, **labels) == 3 * share, (name, labels)
    for name, labels, share in LIVE_GAUGES:
        assert _of(series, name, **labels) == share, (name, labels)
    assert _of(series, "gatefuse_event_loop_lag_seconds", process="frontend-2") is None
    assert _of(series, "gatefuse_event_loop_lag_seconds", process="frontend-1") == 0.25


def test_the_status_is_drawn_of_the_same_series(processes: list[Process]) -> None:
    series, status = _scrape(processes[0].line), _status(processes[0].line)
    assert _of(series, "gatefuse_gpu_temperature_celsius", device="cuda:0") == 61
    (device,) = status["devices"]
    assert (device["device"], device["temperature_celsius"]) == ("cuda:0", 61)
    assert status["version"] == "1"
    assert status["totals"]["requests"]["ok"] == 3
    assert status["totals"]["rows"] == _of(series, "gatefuse_batch_rows_sum", **MODEL) == 15
    assert status["totals"]["queue_rows"] == 30


def test_weights_are_told_apart_without_their_path(processes: list[Process]) -> None:
    series = _scrape(processes[0].line)
    described = [dict(labels) for name, labels in series if name == "gatefuse_model_info"]
    assert described == [
        {
            "model": "ffn",
            "backend": "fused",
            "dtype": "bf16",
            "hidden": "3",
            "intermediate": "8",
            "weights": hashlib.sha256(b"weights").hexdigest()[:12],
        }
    ]
