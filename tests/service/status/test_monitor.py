"""Samples are taken while somebody looks, and only then."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.service.status.pictures import FACTS

from gatefuse.status import monitor as module
from gatefuse.status.facts import WorkerFacts
from gatefuse.status.monitor import Monitor
from gatefuse.status.samples import Sample

STEP_S = 0.02


class Metrics:
    """Counts how often it was asked; `fails` makes it fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False

    def __call__(self) -> list[Sample]:
        self.asked += 1
        if self.fails:
            raise OSError("the files are gone")
        labels = {"method": "ModelInfer", "outcome": "ok"}
        return [Sample("gatefuse_request_duration_seconds_count", labels, self.asked / 3)]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def monitor(metrics: Metrics) -> Iterator[Monitor]:
    monitor = Monitor(metrics, STEP_S)
    yield monitor
    monitor.stop()


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(STEP_S / 4)


def test_nothing_is_read_before_somebody_looks(metrics: Metrics, monitor: Monitor) -> None:
    time.sleep(5 * STEP_S)
    assert metrics.asked == 0


def test_the_first_look_has_no_rates_and_later_ones_have(
    metrics: Metrics, monitor: Monitor
) -> None:
    monitor.facts = lambda: FACTS
    first = json.loads(monitor.look())
    assert first["now"] is None
    assert first["grpc"] == FACTS.grpc
    _until(lambda: metrics.asked >= 3)
    later = json.loads(monitor.look())
    assert later["now"]["ok_per_s"] > 0
    assert later["history"]
    assert abs(later["started_unix_s"] - time.time()) < 60


def test_it_stops_when_nobody_looked_for_as_long_as_it_remembers_and_begins_anew(
    metrics: Metrics, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEPS", 3)
    monitor.look()
    _until(lambda: monitor._sampling is None)
    asked = metrics.asked
    time.sleep(5 * STEP_S)
    assert metrics.asked == asked
    # Not a rate over the time in which nobody looked.
    assert json.loads(monitor.look())["now"] is None
    assert metrics.asked == asked + 1


def test_a_sample_that_fails_is_missed_and_the_next_is_taken(
    metrics: Metrics, monitor: Monitor
) -> None:
    monitor.look()
    metrics.fails = True
    asked = metrics.asked
    _until(lambda: metrics.asked >= asked + 2)
    metrics.fails = False
    _until(lambda: bool(json.loads(monitor.look())["history"]))


def test_a_first_look_that_fails_is_told_and_tried_again(
    metrics: Metrics, monitor: Monitor
) -> None:
    metrics.fails = True
    with pytest.raises(OSError, match="gone"):
        monitor.look()
    metrics.fails = False
    assert json.loads(monitor.look())["now"] is None


def test_many_who_look_cost_one_sample(metrics: Metrics) -> None:
    monitor = Monitor(metrics, step_s=60.0)
    readers = [threading.Thread(target=monitor.look) for _ in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert metrics.asked == 1
    monitor.stop()


def test_figures_have_no_more_digits_than_they_are_worth() -> None:
    shown = module._plain((1 / 3, 2, None, "x", True, {"a": 2 / 3}, WorkerFacts(1, "ready", "cpu")))
    assert shown == [
        0.333333,
        2,
        None,
        "x",
        True,
        {"a": 0.666667},
        {"slot": 1, "state": "ready", "device": "cpu", "restarts": 0},
    ]
