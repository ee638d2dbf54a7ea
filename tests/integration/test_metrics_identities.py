"""What the metrics count is what happened: 10,000 requests of every kind, and workers killed all the while.

The identities are those of docs/metrics.md. Kinds that cannot end in two ways are compared with what the clients saw,
to the last one; the others, which their callers give up, wait until the server has them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections import Counter
from functools import partial
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.integration.harness import CHECKPOINT, Scrape, Service, Start, wait_until
from tests.integration.prometheus import find_tool

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import InferenceError
from gatefuse.client.messages import Rows, infer_request
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

REQUESTS = 10_000
CALLERS = 24
WORKERS = 2
# So many at a time, each when the last have been replaced.
KILLS = (2, 2, 1)
COLUMNS = 64
GIVEN_UP = 12
HIDDEN = 1024
SLOW_ROWS = 256
SLOW = {"hidden_states": np.ones((SLOW_ROWS, HIDDEN), np.float32)}
# Kernel launches of one batch.
LAUNCHES = {"llama-ffn": 2, "llama-ffn-eager": 5, "identity": 1, "small": 1, "slow": 5}
DROPPED = {"slow", "identity", "hasty"}
RESTART_S = 60.0
INFER = {"method": "ModelInfer"}

pytestmark = pytest.mark.slow


def _config() -> dict[str, Any]:
    identity = {"kind": "elementwise", "expression": "x", "columns": COLUMNS, "dtype": "fp32"}
    models: list[dict[str, Any]] = [
        {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"},
        {"name": "llama-ffn-eager", "checkpoint": str(CHECKPOINT), "backend": "eager"},
        {"name": "identity", **identity, "batching": {"max_batch_rows": 32}},
        {"name": "small", **identity, "batching": {"max_batch_rows": 8, "max_queue_rows": 16}},
        {"name": "hasty", **identity, "batching": {"default_timeout_ms": 50}},
        {
            "name": "slow",
            "random": {"hidden": HIDDEN, "intermediate": 16384},
            "backend": "eager",
            "dtype": "fp32",
        },
    ]
    return {
        "device": "cpu",
        "worker_threads": 1,
        "models": [{**model, "replicas": WORKERS} for model in models],
    }


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start(_config())


class Tally:
    """What the clients sent and saw."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.answered_rows: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    @property
    def issued(self) -> int:
        return sum(self.codes.values())

    def crossed(self, after: Scrape) -> int:
        """Answers that were on their way when their callers left."""
        cancelled = after.value("gatefuse_requests_total", code="CANCELLED", **INFER)
        return self.codes["CANCELLED"] - int(cancelled)

    async def infer(self, client: AioClient, model: str, x: Any, **options: Any) -> None:
        """Sends one request and notes how it ended."""
        try:
            answer = await client.infer(model, x, **options)
        except InferenceError as error:
            self.codes[error.code.name] += 1
            return
        except asyncio.CancelledError:
            self.codes["CANCELLED"] += 1
            return
        rows = len(next(iter(x.values())))
        assert len(answer.output) == rows
        self.codes["OK"] += 1
        self.answered[model] += 1
        self.answered_rows[model] += rows


class Killer(threading.Thread):
    """Kills workers and waits until they are replaced; no counter may fall meanwhile."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._earlier = service.scrape()
        self.fallen: list[str] = []
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            killed = 0
            for count in KILLS:
                for pid in self._service.worker_pids()[:count]:
                    os.kill(pid, signal.SIGKILL)
                killed += count
                wait_until(partial(self._replaced, killed), RESTART_S, "workers are back")
        except BaseException as error:
            self.broken = error

    def _replaced(self, killed: int) -> bool:
        now = self._service.scrape()
        self.fallen += now.fallen_since(self._earlier)
        self._earlier = now
        ready = now.value("gatefuse_replicas", state="ready")
        return ready == WORKERS and now.value("gatefuse_replica_restarts_total") == killed


async def _mixed(tally: Tally, client: AioClient, number: int) -> None:
    """One request: two thirds of them good, the others refused for one reason each."""
    rows = 1 + number % 40
    x = {"x": np.full((rows, COLUMNS), number, np.float32)}
    llama = {"hidden_states": np.full((rows, 256), 0.5, np.float32)}
    layer = number % 4
    match number % 12:
        case 0:
            await tally.infer(client, "llama-ffn", llama, layer=layer, datatype="BF16")
        case 1:
            await tally.infer(client, "llama-ffn-eager", llama, layer=layer)
        case 2:
            await tally.infer(client, "small", {"x": x["x"][:8]})
        case 3:
            await tally.infer(client, "llama-ffn", llama, layer=9)
        case 4:
            await tally.infer(client, "identity", {"x": x["x"][:, :5]})
        case 5:
            await tally.infer(client, "nobody", x)
        case _:
            await tally.infer(client, "identity", x)


async def _load(service: Service, tally: Tally, killer: Killer) -> None:
    sent = 0

    async def caller(client: AioClient) -> None:
        nonlocal sent
        while sent < REQUESTS or killer.is_alive():
            sent += 1
            await _mixed(tally, client, sent)
            if sent > REQUESTS:
                await asyncio.sleep(0.05)  # the cores are for the workers that have to come back

    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY, shared_memory="off") as client:
        await asyncio.gather(*(caller(client) for _ in range(CALLERS)))


async def _leave(service: Service, tally: Tally, client: AioClient) -> None:
    """Calls whose clients go away once they are all at the server."""

    def begun(scrape: Scrape) -> float:
        ended = scrape.value("gatefuse_requests_total", **INFER)
        return ended + scrape.value("gatefuse_requests_in_flight", **INFER)

    before = begun(await asyncio.to_thread(service.scrape_idle))

    def all_there() -> bool:
        return begun(service.scrape()) == before + GIVEN_UP

    calls = [asyncio.create_task(tally.infer(client, "slow", SLOW)) for _ in range(GIVEN_UP)]
    await asyncio.to_thread(wait_until, all_there, 30, "all calls are at the server")
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls)


async def _expire(service: Service, tally: Tally, client: AioClient) -> None:
    """Calls whose time is over before their turn comes, by their model's deadline or by their own timeout.

    A client's own deadline would not do: it may give up when the server thinks that there is time left.
    """
    ahead = [asyncio.create_task(tally.infer(client, "slow", SLOW)) for _ in range(GIVEN_UP)]
    await asyncio.sleep(0.2)
    x = np.ones((3, COLUMNS), np.float32)
    late = [
        tally.infer(client, "identity", {"x": x}, parameters={"timeout": 1000})
        for _ in range(GIVEN_UP)
    ]
    message = infer_request("hasty", {"x": Rows(x.tobytes(), x.shape, Datatype.FP32)})
    async with grpc.aio.insecure_channel(service.url) as channel:
        method: Any = channel.unary_unary(f"/{pb.SERVICE_NAME}/ModelInfer")

        async def without_deadline() -> None:
            try:
                await method(message.SerializeToString())
                tally.codes["OK"] += 1
            except grpc.aio.AioRpcError as error:
                tally.codes[error.code().name] += 1

        await asyncio.gather(*ahead, *late, *(without_deadline() for _ in range(GIVEN_UP)))


@pytest.mark.asyncio
async def test_identities_after_ten_thousand_requests_and_five_kills(service: Service) -> None:
    before = service.scrape_idle()
    tally = Tally()
    killer = Killer(service)
    killer.start()
    await _load(service, tally, killer)
    await asyncio.to_thread(killer.join)
    if killer.broken is not None:
        raise killer.broken
    async with AioClient(service.url, timeout_s=60, retry=NO_RETRY, shared_memory="off") as client:
        await _leave(service, tally, client)
        await _expire(service, tally, client)
    after = await asyncio.to_thread(service.scrape_idle)
    assert tally.issued >= REQUESTS
    assert killer.fallen == []
    assert after.fallen_since(before) == []

    _check_clients(tally, after)
    _check_requests(after)
    for model, launches in LAUNCHES.items():
        _check_rows(tally, model, after)
        _check_launches(model, launches, after)
    _check_batches(after)
    _check_workers(after)


def _check_clients(tally: Tally, after: Scrape) -> None:
    """Every code is what the clients saw, and every kind of end was there."""
    counted = after.by_label("gatefuse_requests_total", "code", **INFER)
    assert counted == {
        **tally.codes,
        "OK": tally.codes["OK"] + tally.crossed(after),
        "CANCELLED": tally.codes["CANCELLED"] - tally.crossed(after),
    }
    assert 0 <= tally.crossed(after) <= WORKERS
    assert sum(counted.values()) == tally.issued
    assert {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(
        tally.codes
    )
    assert tally.codes["RESOURCE_EXHAUSTED"] == after.value(
        "gatefuse_requests_shed_total", reason="queue_full"
    )
    for reason in ("deadline", "queue_timeout"):
        assert after.value("gatefuse_requests_shed_total", reason=reason) == GIVEN_UP
    phases = after.by_label("gatefuse_cancelled_total", "phase")
    assert phases["queued"] > 0
    assert sum(phases.values()) == counted["CANCELLED"]


def _check_requests(after: Scrape) -> None:
    """Each finished request is counted once by what it was."""

    def outcome(name: str) -> float:
        return after.value("gatefuse_request_duration_seconds_count", outcome=name)

    total = after.value("gatefuse_requests_total")
    shed = after.value("gatefuse_requests_shed_total")
    invalid = after.value("gatefuse_requests_invalid_total")
    cancelled = after.value("gatefuse_cancelled_total")
    assert outcome("ok") == after.value("gatefuse_requests_total", code="OK")
    assert outcome("shed") == shed
    for method in ("ModelInfer", "ModelStreamInfer", "other"):
        of_method = {"outcome": "shed", "method": method}
        assert after.value("gatefuse_requests_shed_total", method=method) == after.value(
            "gatefuse_request_duration_seconds_count", **of_method
        )
    assert outcome("client") == invalid + cancelled
    assert total == outcome("ok") + outcome("server") + shed + invalid + cancelled
    assert outcome("server") == 0
    assert after.value("gatefuse_requests_in_flight") == 0
    assert after.value("gatefuse_queue_rows") == 0


def _check_rows(tally: Tally, model: str, after: Scrape) -> None:
    """Rows in are rows out and rows dropped; the clients got what was answered."""
    accepted = after.value("gatefuse_request_rows_sum", model=model)
    answered = after.value("gatefuse_rows_total", model=model, outcome="answered")
    dropped = after.value("gatefuse_rows_total", model=model, outcome="dropped")
    assert accepted == answered + dropped
    crossed = tally.crossed(after) if model == "slow" else 0
    assert answered == tally.answered_rows[model] + crossed * SLOW_ROWS
    assert (dropped > 0) == (model in DROPPED), dropped
    requests = after.value("gatefuse_inference_duration_seconds_count", model=model)
    assert requests == tally.answered[model] + crossed


def _check_launches(model: str, launches: int, after: Scrape) -> None:
    batches = after.value("gatefuse_device_batch_seconds_count", model=model)
    assert batches > 0
    assert after.value("gatefuse_kernel_launches_total", model=model) == launches * batches


def _check_batches(after: Scrape) -> None:
    """Every batch that was sent came back, or its worker died."""
    sent = after.value("gatefuse_batches_total")
    assert sent == after.value("gatefuse_batch_rows_count")
    assert sent == after.value("gatefuse_replica_call_seconds_count")
    ok = after.value("gatefuse_replica_call_seconds_count", outcome="ok")
    assert ok == after.value("gatefuse_device_batch_seconds_count")
    assert ok == after.value("gatefuse_replica_overhead_seconds_count")
    again = after.value("gatefuse_batch_rows_sum") - after.value("gatefuse_request_rows_sum")
    if not after.value("gatefuse_replica_call_seconds_count", outcome="died"):
        assert again <= 0


def _check_workers(after: Scrape) -> None:
    assert after.by_label("gatefuse_replica_restarts_total", "cause") == {"crash": sum(KILLS)}
    assert after.by_label("gatefuse_replicas", "state") == {"ready": WORKERS}
    assert after.value("gatefuse_device_errors_total") == 0
    described = after.by_label("gatefuse_process_resident_bytes", "process")
    assert set(described) == {"driver", "frontend-0", "worker-0", "worker-1"}
    busy = after.by_label("gatefuse_device_busy_seconds_total", "device")
    assert set(busy) == {"cpu:0", "cpu:1"}


def test_promtool_finds_nothing_to_complain_of(service: Service) -> None:
    text = service.exposition()
    checked = subprocess.run(
        [find_tool("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
