"""Processes killed, stopped and told to go under load: every request has one answer, and it is right."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gatefuse.aio_client import AioClient
from gatefuse.client import Client, InferenceError
from gatefuse.loadtest.tensors import TensorFile
from tests.integration.harness import (
    CHECKPOINT,
    Scrape,
    Service,
    Start,
    free_port,
    wait_until,
)
from tests.integration.load import IDENTITY_COLUMNS, Load

KILLS = 10
WORKERS = 2
# A new worker imports torch, loads and warms up.
RESTART_S = 60.0
BATCH_TIMEOUT_S = 4.0

IDENTITY = {
    "name": "identity",
    "kind": "elementwise",
    "expression": "x",
    "columns": IDENTITY_COLUMNS,
    "dtype": "fp32",
    "replicas": WORKERS,
}
LLAMA = {
    "name": "llama-ffn",
    "checkpoint": str(CHECKPOINT),
    "backend": "fused",
    "replicas": WORKERS,
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start(
        {
            "device": "cpu",
            "batch_timeout_s": BATCH_TIMEOUT_S,
            "worker_threads": 1,
            "models": [LLAMA, IDENTITY],
        }
    )


def _ready_workers(service: Service) -> list[int] | None:
    """The workers' processes, once all of them serve."""
    pids = service.worker_pids()
    ready = service.scrape().value("gatefuse_replicas", state="ready")
    return pids if len(pids) == WORKERS and ready == WORKERS else None


def _restarts(scrape: Scrape) -> dict[str, float]:
    return scrape.by_label("gatefuse_replica_restarts_total", "cause")


def _wait_for_workers(service: Service, without: set[int]) -> None:
    """Waits until as many workers serve as there were, none of them one of those that were killed."""

    def back() -> bool:
        pids = _ready_workers(service)
        return pids is not None and not without & set(pids)

    wait_until(back, RESTART_S, f"workers are back\n{service.log[-3000:]}")


def test_worker_killed_ten_times_under_load(service: Service, tiny_llama: TensorFile) -> None:
    before = service.scrape_idle()
    earlier = before
    with Load(service.url, tiny_llama) as load:
        for kill in range(KILLS):
            pids = _ready_workers(service)
            assert pids is not None
            answered = load.answered
            wait_until(lambda at=answered: load.answered > at + 100, 30, "answers under load")
            victim = pids[kill % WORKERS]
            os.kill(victim, signal.SIGKILL)
            _wait_for_workers(service, {victim})
            now = service.scrape()
            assert now.fallen_since(earlier) == []
            earlier = now
    after = service.scrape_idle()
    assert load.wrong == []
    assert load.failed == {}
    assert load.issued == load.answered
    assert _restarts(after)["crash"] - _restarts(before).get("crash", 0) == KILLS
    # Most kills find a batch at the worker: its rows were run again, and nobody was answered twice.
    died = after.value("gatefuse_replica_call_seconds_count", outcome="died")
    assert died - before.value("gatefuse_replica_call_seconds_count", outcome="died") >= 1
    ok = after.value("gatefuse_requests_total", method="ModelInfer", code="OK")
    assert ok - before.value("gatefuse_requests_total", method="ModelInfer", code="OK") == load.issued
    again = after.value("gatefuse_batch_rows_sum") - after.value("gatefuse_request_rows_sum")
    assert again > 0


def test_all_workers_killed(service: Service, tiny_llama: TensorFile) -> None:
    row = np.zeros((1, IDENTITY_COLUMNS), np.float32)
    before = service.scrape_idle()
    with Client(service.url) as client, Load(service.url, tiny_llama, callers=4) as load:
        pids = wait_until(lambda: _ready_workers(service), RESTART_S, "both workers")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not client.is_ready(), 2, "not ready")
        begun_s = time.monotonic()
        with pytest.raises(InferenceError) as refused:
            client.infer("identity", row)
        assert time.monotonic() - begun_s < 1
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
        assert client.is_live()
        assert not client.model_ready("identity")
        assert client.models() == ("llama-ffn", "identity")
        _wait_for_workers(service, set(pids))
        wait_until(client.is_ready, 10, "ready again")
        answered = load.answered
        wait_until(lambda: load.answered > answered + 50, 30, "answers again")
    assert load.wrong == []
    assert set(load.failed) == {"UNAVAILABLE"}
    after = service.scrape_idle()
    assert after.fallen_since(before) == []
    shed = after.value("gatefuse_requests_shed_total", reason="no_replica")
    assert shed == after.value("gatefuse_requests_total", method="ModelInfer", code="UNAVAILABLE")
    assert shed == before.value("gatefuse_requests_shed_total", reason="no_replica") + 1 + sum(
        load.failed.values()
    )


def test_stopped_worker_is_killed_and_its_rows_run_elsewhere(
    service: Service, tiny_llama: TensorFile
) -> None:
    before = service.scrape_idle()
    with Load(service.url, tiny_llama) as load:
        pids = wait_until(lambda: _ready_workers(service), RESTART_S, "both workers")
        os.kill(pids[0], signal.SIGSTOP)
        # The supervisor waits two seconds for a report of each process that says nothing.
        wait_until(
            lambda: pids[0] not in service.worker_pids(), BATCH_TIMEOUT_S + 5, "the hang is noticed"
        )
        _wait_for_workers(service, {pids[0]})
    assert load.wrong == []
    assert load.failed == {}
    assert load.issued == load.answered
    after = service.scrape_idle()
    assert after.fallen_since(before) == []
    assert _restarts(after)["hang"] - _restarts(before).get("hang", 0) == 1
    assert _restarts(after).get("crash") == _restarts(before).get("crash")
    timeouts = after.value("gatefuse_replica_call_seconds_count", outcome="timeout")
    assert timeouts - before.value("gatefuse_replica_call_seconds_count", outcome="timeout") == 1


def test_frontend_killed_comes_back_on_its_port(service: Service, tiny_llama: TensorFile) -> None:
    before = service.scrape_idle()
    (frontend,) = service.frontend_pids()
    workers = set(service.worker_pids())
    with Load(service.url, tiny_llama) as load:
        wait_until(lambda: load.answered > 50, 30, "answers under load")
        os.kill(frontend, signal.SIGKILL)
        wait_until(lambda: load.failed, 10, "calls fail")
        answered = load.answered
        wait_until(lambda: load.answered > answered + 50, RESTART_S, "answers on the same port")
    assert load.wrong == []
    assert set(load.failed) <= {"UNAVAILABLE"}
    assert set(service.worker_pids()) == workers
    after = service.scrape_idle()
    assert after.fallen_since(before) == []
    assert after.value("gatefuse_requests_in_flight") == 0
