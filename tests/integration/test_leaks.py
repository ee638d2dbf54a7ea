"""Nobody sees another's rows, nobody's NaN spreads, and clients that die leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from tests.integration.harness import CHECKPOINT, Service, Start

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client, InferenceError, Result
from gatefuse.commands.loadtest.tensors import TensorFile

Array: TypeAlias = NDArray[Any]

BACKENDS = ("fused", "eager", "compiled")
MAX_BATCH_ROWS = 32
COLUMNS = 48
# Long enough that requests sent one after the other share a batch.
COMPANY_DELAY_US = 60_000
SECRET = np.float32(1.2345678e33)
CLIENTS = 200
REQUESTS = 100
# One payload of 256 KiB left by each of 100 clients or requests would be 25 MiB.
GROWTH_BYTES = 6 * 2**20


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    mlp = {"checkpoint": str(CHECKPOINT), "layers": [3]}
    company = {"max_batch_rows": MAX_BATCH_ROWS, "max_queue_delay_us": COMPANY_DELAY_US}
    return start(
        {
            "device": "cpu",
            "worker_threads": 1,
            "models": [
                *({**mlp, "name": name, "backend": name, "batching": company} for name in BACKENDS),
                {
                    "name": "identity",
                    "kind": "elementwise",
                    "expression": "x",
                    "dtype": "fp32",
                    "max_columns": 4096,
                    "batching": {"max_batch_rows": MAX_BATCH_ROWS},
                },
                {
                    "name": "slow",
                    "random": {"hidden": 2048, "intermediate": 8192},
                    "backend": "eager",
                    "dtype": "fp32",
                    "batching": {"max_batch_rows": 32, "max_queue_rows": 512},
                },
            ],
        }
    )


@pytest.mark.asyncio
async def test_no_row_of_another_request(service: Service) -> None:
    """Secret rows of all widths and heights fill the slots; whoever comes next or beside gets its own rows alone."""
    draw = random.Random(5)
    checked = 0

    async def secret(client: AioClient) -> None:
        for _ in range(60):
            # Up to a whole slot, and above it: split over several batches.
            rows, columns = draw.randint(1, 3 * MAX_BATCH_ROWS), draw.choice((COLUMNS, 512, 4096))
            answer = await client.infer("identity", np.full((rows, columns), SECRET, np.float32))
            assert (answer.output == SECRET).all()

    async def other(client: AioClient, number: int) -> None:
        nonlocal checked
        for _ in range(150):
            number += 100
            rows, columns = draw.choice((1, 2, 5, 40)), draw.choice((1, 7, COLUMNS, 512))
            x = number + np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) / 4096
            answer = (await client.infer("identity", x)).output
            np.testing.assert_array_equal(answer, x)
            checked += 1

    async with AioClient(service.url) as client:
        await asyncio.gather(
            *(secret(client) for _ in range(3)), *(other(client, i) for i in range(8))
        )
    assert checked == 1200


def test_errors_carry_nothing_of_another_request(service: Service) -> None:
    with Client(service.url) as client:
        client.infer("identity", np.full((MAX_BATCH_ROWS, COLUMNS), SECRET, np.float32))
        with pytest.raises(InferenceError) as refused:
            client.infer("identity", np.ones((1, 5000), np.float32))
    assert str(SECRET) not in refused.value.details


def _rows(tiny_llama: TensorFile, rows: int, first: int = 0) -> Array:
    return tiny_llama["layer.3.input"][first : first + rows]


async def _together(client: AioClient, model: str, first: Array, second: Array) -> list[Result]:
    """Two requests in one batch, in this order: they come while the worker has full batches to do."""
    before = np.zeros((16 * MAX_BATCH_ROWS, first.shape[1]), np.float32)
    for _ in range(5):
        calls = []
        for x in (before, first, second):
            calls.append(asyncio.create_task(client.infer(model, x, datatype="BF16")))
            await asyncio.sleep(0.005)
        _, *results = await asyncio.gather(*calls)
        if all(result.cost.batch_rows == len(first) + len(second) for result in results):
            return results
    raise AssertionError("the two never shared a batch")


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.asyncio
async def test_poisoned_rows_do_not_touch_their_neighbours(
    service: Service, tiny_llama: TensorFile, backend: str, poison: float
) -> None:
    mine, harmless = _rows(tiny_llama, 3), _rows(tiny_llama, 2, 50)
    poisoned = np.full_like(harmless, poison)
    async with AioClient(service.url) as client:
        for mine_first in (True, False):
            pairs = ((mine, harmless), (mine, poisoned))
            outputs = []
            for pair in pairs:
                results = await _together(client, backend, *(pair if mine_first else pair[::-1]))
                outputs.append(results[0 if mine_first else 1].output)
            assert np.isfinite(outputs[0]).all()
            np.testing.assert_array_equal(outputs[1].view(np.uint32), outputs[0].view(np.uint32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_poison_inside_a_request_stays_in_its_row(
    service: Service, tiny_llama: TensorFile, backend: str
) -> None:
    x = _rows(tiny_llama, 9).copy()
    with Client(service.url) as client:
        clean = client.infer(backend, x, datatype="BF16").output
        for row in (0, 4, 8):
            x[row, 17] = np.nan
        dirty = client.infer(backend, x, datatype="BF16").output
    kept = [row for row in range(9) if row % 4]
    np.testing.assert_array_equal(dirty[kept], clean[kept])
    assert np.isnan(dirty[[0, 4, 8]]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_is_not_the_last_batch(
    service: Service, tiny_llama: TensorFile, backend: str
) -> None:
    """Five rows, padded to eight where the backend pads, after a batch that left NaN in every row."""
    x = _rows(tiny_llama, 5)
    with Client(service.url) as client:
        before = client.infer(backend, x, datatype="BF16").output
        poison = np.full((MAX_BATCH_ROWS, x.shape[1]), np.nan, np.float32)
        assert np.isnan(client.infer(backend, poison, datatype="BF16").output).all()
        after = client.infer(backend, x, datatype="BF16").output
    np.testing.assert_array_equal(after, before)


def _state(service: Service) -> dict[int, tuple[int, int]]:
    """Descriptors and memory of their own of each actor's process."""
    found = {}
    for pid in (*service.frontend_pids(), *service.worker_pids()):
        process = psutil.Process(pid)
        found[pid] = (process.num_fds(), process.memory_full_info().uss)
    return found


def _kill_clients(service: Service, count: int) -> None:
    script = Path(__file__).with_name("abrupt_clients.py")
    subprocess.run([sys.executable, str(script), service.url, str(count)], check=True, timeout=120)
    service.scrape_idle()
    time.sleep(0.5)


@pytest.mark.parametrize("kind", ["answered", "late", "refused", "cancelled"])
@pytest.mark.asyncio
async def test_rows_are_let_go_with_the_request(service: Service, kind: str) -> None:
    """A quarter or half a megabyte in each request, however it ends: what 100 of them leave would be seen."""

    async def send(client: AioClient) -> None:
        model, columns = ("identity", 4096) if kind == "answered" else ("slow", 2048)
        x = np.ones((MAX_BATCH_ROWS, columns), np.float32)
        layer, timeout_s = (9 if kind == "refused" else None), (0.01 if kind == "late" else 30)
        call = asyncio.create_task(client.infer(model, x, layer=layer, timeout_s=timeout_s))
        if kind == "cancelled":
            await asyncio.sleep(0.01)
            call.cancel()
        try:
            await call
            ended[kind == "answered"] += 1
        except InferenceError as error:
            ended[
                error.code.name == {"late": "DEADLINE_EXCEEDED", "refused": "NOT_FOUND"}[kind]
            ] += 1
        except asyncio.CancelledError:
            ended[kind == "cancelled"] += 1

    ended: Counter[bool] = Counter()
    (pid,) = service.frontend_pids()
    sizes = []
    async with AioClient(service.url) as client:
        for _ in range(2):
            for _ in range(REQUESTS):
                await send(client)
            await asyncio.to_thread(service.scrape_idle)
            sizes.append(psutil.Process(pid).memory_full_info().uss)
    assert ended[True] > REQUESTS
    assert sizes[1] <= sizes[0] + GROWTH_BYTES


@pytest.mark.slow
def test_clients_that_die_leave_nothing(service: Service) -> None:
    gc.collect()
    _kill_clients(service, CLIENTS // 2)  # whatever grows once and is kept has grown
    before = _state(service)
    _kill_clients(service, CLIENTS // 2)
    after = _state(service)
    assert before.keys() == after.keys()
    for pid, (descriptors, memory_bytes) in before.items():
        assert after[pid][0] <= descriptors + 2
        assert after[pid][1] <= memory_bytes + GROWTH_BYTES
    found = service.scrape()
    assert found.value("gatefuse_replica_restarts_total") == 0
    left = found.by_label("gatefuse_cancelled_total", "phase")
    assert sum(left.values()) > CLIENTS / 4
    with Client(service.url) as client:
        x = np.ones((1, COLUMNS), np.float32)
        np.testing.assert_array_equal(client.infer("identity", x).output, x)
