"""Processes killed, stopped and told to go under load: every request has one answer, and it is right."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.integration.harness import (
    CHECKPOINT,
    START_S,
    Scrape,
    Service,
    Start,
    wait_until,
)
from tests.integration.load import IDENTITY_COLUMNS, Load

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client, InferenceError, Result
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.loadtest.tensors import TensorFile

# FAULT_KILLS=10 takes some minutes.
KILLS = int(os.environ.get("FAULT_KILLS", "3"))
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


def _restarts(scrape: Scrape) -> dict[str, float]:
    return scrape.by_label("gatefuse_replica_restarts_total", "cause")


def _more_answers(load: Load, than: int) -> bool:
    return load.answered > than


def _wait_for_workers(service: Service, restarts: float) -> list[int]:
    """Waits until as many workers serve as there were, after so many restarts; returns their processes."""

    def back() -> bool:
        found = service.scrape()
        ready = found.value("gatefuse_replicas", state="ready")
        return ready == WORKERS and sum(_restarts(found).values()) == restarts

    wait_until(back, RESTART_S, f"workers are back\n{service.log[-3000:]}")
    pids = service.worker_pids()
    assert len(pids) == WORKERS
    return pids


def test_worker_killed_again_and_again_under_load(service: Service, tiny_llama: TensorFile) -> None:
    before = service.scrape_idle()
    earlier = before
    restarts = sum(_restarts(before).values())
    pids = _wait_for_workers(service, restarts)
    # Few callers: the cores are shared with the worker that has to come back.
    with Load(service.url, tiny_llama, callers=2) as load:
        for kill in range(KILLS):
            wait_until(partial(_more_answers, load, load.answered + 100), 30, "answers under load")
            os.kill(pids[kill % WORKERS], signal.SIGKILL)
            pids = _wait_for_workers(service, restarts + kill + 1)
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
    assert (
        ok - before.value("gatefuse_requests_total", method="ModelInfer", code="OK") == load.issued
    )
    again = after.value("gatefuse_batch_rows_sum") - after.value("gatefuse_request_rows_sum")
    assert again > 0


def test_all_workers_killed(service: Service, tiny_llama: TensorFile) -> None:
    row = np.zeros((1, IDENTITY_COLUMNS), np.float32)
    before = service.scrape_idle()
    restarts = sum(_restarts(before).values())
    pids = _wait_for_workers(service, restarts)
    with (
        Client(service.url, retry=NO_RETRY) as client,
        Load(service.url, tiny_llama, callers=4) as load,
    ):
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
        _wait_for_workers(service, restarts + WORKERS)
        wait_until(client.is_ready, 10, "ready again")
        answered = load.answered
        wait_until(lambda: load.answered > answered + 50, 30, "answers again")
    assert load.wrong == []
    # Requests that were accepted before are answered by the new workers; new ones are refused.
    assert set(load.failed) <= {"UNAVAILABLE"}
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
    restarts = sum(_restarts(before).values())
    pids = _wait_for_workers(service, restarts)
    with Load(service.url, tiny_llama) as load:
        os.kill(pids[0], signal.SIGSTOP)
        # The supervisor waits two seconds for a report of each process that says nothing.
        wait_until(
            lambda: pids[0] not in service.worker_pids(), BATCH_TIMEOUT_S + 5, "the hang is noticed"
        )
        _wait_for_workers(service, restarts + 1)
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


def _slow_config(**more: Any) -> dict[str, Any]:
    """One worker, and batches of 256 rows that take it a good part of a second."""
    model = {
        "name": "slow",
        "random": {"hidden": 2048, "intermediate": 8192},
        "backend": "eager",
        "dtype": "fp32",
        "batching": {"max_batch_rows": 256},
    }
    return {"device": "cpu", "worker_threads": 1, "models": [model], **more}


@pytest.mark.asyncio
async def test_sigterm_under_load_answers_what_was_accepted(start: Start) -> None:
    service = start(_slow_config())
    x = np.ones((256, 2048), np.float32)
    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY) as client:
        expected = (await client.infer("slow", x)).output
        accepted = [asyncio.create_task(client.infer("slow", x)) for _ in range(6)]

        def all_accepted() -> bool:
            # Two are at the worker, which takes one and has none to spare, or about to leave.
            return service.scrape().value("gatefuse_queue_rows", model="slow") >= 4 * 256

        await asyncio.to_thread(wait_until, all_accepted, 30, "a queue")
        service.terminate()
        # Some of these may be let in before the signal is noticed.
        late: list[asyncio.Task[Result]] = []
        while not all(task.done() for task in accepted):
            late.append(asyncio.create_task(client.infer("slow", x[:1])))
            await asyncio.sleep(0.05)
        answers = [await task for task in accepted]
        outcomes = await asyncio.gather(*late, return_exceptions=True)
    refused = [error for error in outcomes if isinstance(error, InferenceError)]
    for answer in answers:
        np.testing.assert_array_equal(answer.output, expected)
    assert {error.code for error in refused} == {grpc.StatusCode.UNAVAILABLE}
    assert "the server is draining" in {error.details for error in refused}
    assert service.wait_exit() == 0


def _copy_of_checkpoint(folder: Path, damage: str) -> Path:
    """tiny-llama with the named damage in the shard that holds layer 1's up projection."""
    shutil.copytree(CHECKPOINT, folder)
    name = b"model.layers.1.mlp.up_proj.weight"
    for shard in sorted(folder.glob("model-*.safetensors")):
        content = shard.read_bytes()
        if name not in content:
            continue
        if damage == "truncated":
            shard.write_bytes(content[: len(content) // 2])
        elif damage == "missing tensor":
            shard.write_bytes(content.replace(name, name.replace(b"up_proj", b"xx_proj")))
        else:
            header, rest = content.split(name, 1)
            rest = rest.replace(b"[688,256]", b"[256,688]", 1)
            shard.write_bytes(header + name + rest)
        return shard
    raise AssertionError("no shard holds that tensor")


def test_bad_checkpoints_are_refused(tmp_path: Path) -> None:
    """The exit status says it is the configuration's fault; the text names the file, the tensor, both shapes."""
    told = {
        "truncated": "corrupt or truncated",
        "missing tensor": "lacks tensor 'model.layers.1.mlp.up_proj.weight'",
        "wrong shape": (
            "'model.layers.1.mlp.up_proj.weight' has shape [256, 688], expected [688, 256]"
        ),
    }
    services: dict[str, Service] = {}
    shards: dict[str, Path] = {}
    try:
        for damage in told:
            folder = tmp_path / damage.replace(" ", "-")
            folder.mkdir()
            shards[damage] = _copy_of_checkpoint(folder / "checkpoint", damage)
            model = {"name": "llama-ffn", "checkpoint": str(folder / "checkpoint")}
            services[damage] = Service(folder, {"device": "cpu", "models": [model]})
        for damage, service in services.items():
            # It takes as long as a start: nothing is tried again.
            assert service.wait_exit(START_S) == 78
            (line,) = [line for line in service.log.splitlines() if line.startswith("gatefuse: ")]
            assert shards[damage].name in line
            assert told[damage] in line
            assert "Traceback" not in service.log
    finally:
        for service in services.values():
            service.kill()


def test_sigterm_while_models_load(tmp_path: Path) -> None:
    model = {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "eager"}
    service = Service(tmp_path, {"device": "cpu", "models": [model]})
    try:
        # The last process that is started: none of them is ready yet.
        wait_until(service.frontend_pids, START_S, "a frontend process")
        service.terminate()
        assert service.wait_exit() == 0
    finally:
        service.kill()
    assert "ready:" not in service.log
