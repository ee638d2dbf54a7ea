"""Two frontend processes on one port are one service: clients reach both, and the metrics add up."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest
from tests.integration.harness import (
    CHECKPOINT,
    Scrape,
    Service,
    Start,
    free_port,
    wait_until,
)

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import InferenceError
from gatefuse.client.messages import Cost
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.loadtest.tensors import TensorFile
from gatefuse_kernels.traffic import ACTIVATION_FLOPS

FRONTENDS = 2
CHANNELS = 16
REQUESTS = 40  # on each channel
MAX_BATCH_ROWS = 16
HIDDEN, INTERMEDIATE = 256, 688
BF16_BYTES = 2
LAUNCHES = {"fused": 2, "eager": 5}
# Read and written for each row: fused keeps gate and up in registers, eager writes and reads both, twice.
ELEMENTS_PER_ROW = {
    "fused": 2 * HIDDEN + 2 * INTERMEDIATE,
    "eager": 3 * HIDDEN + 8 * INTERMEDIATE,
}


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    model = {"checkpoint": str(CHECKPOINT), "batching": {"max_batch_rows": MAX_BATCH_ROWS}}
    return start(
        {
            "device": "cpu",
            "frontends": FRONTENDS,
            "grpc_port": free_port(),
            "models": [
                *({**model, "name": name, "backend": name} for name in LAUNCHES),
                {"name": "identity", "kind": "elementwise", "expression": "x", "columns": 8},
            ],
        }
    )


def _connections(service: Service) -> dict[int, int]:
    """How many clients each frontend process has."""
    found = {}
    for pid in service.frontend_pids():
        connections = psutil.Process(pid).net_connections("tcp")
        found[pid] = sum(
            connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == service.port
            for connection in connections
        )
    return found


class Tally:
    """What the clients saw."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.costs: dict[str, list[tuple[Cost, int]]] = {name: [] for name in LAUNCHES}
        self.payload_bytes = 0

    async def infer(self, client: AioClient, model: str, x: Any, **options: Any) -> None:
        """Sends one request and notes how it ended."""
        try:
            result = await client.infer(model, x, **options)
        except InferenceError as error:
            self.codes[error.code.name] += 1
            return
        self.codes["OK"] += 1
        self.requests[model] += 1
        self.rows[model] += len(x)
        self.payload_bytes += x.size * BF16_BYTES
        if model in self.costs:
            self.costs[model].append((result.cost, len(x)))


async def _mixed(tally: Tally, client: AioClient, channel: int, tiny_llama: TensorFile) -> None:
    """Requests of all sizes, some above a batch, some that are refused, on one channel."""
    for number in range(REQUESTS):
        kind = (channel + number) % 8
        layer = number % 4
        x = tiny_llama[f"layer.{layer}.input"][: 1 + (7 * number + channel) % 40]
        if kind < 6:
            name = "fused" if kind % 2 else "eager"
            await tally.infer(client, name, x, layer=layer, datatype="BF16")
        elif kind == 6:
            await tally.infer(client, "eager", x, layer=9)
        else:
            await tally.infer(client, "fused", x[:, :100], layer=layer)


@pytest.mark.asyncio
async def test_one_scrape_is_what_all_clients_saw(service: Service, tiny_llama: TensorFile) -> None:
    before = service.scrape_idle()
    tally = Tally()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AioClient(service.url, timeout_s=60, retry=NO_RETRY))
            for _ in range(CHANNELS)
        ]
        await asyncio.gather(
            *(_mixed(tally, client, i, tiny_llama) for i, client in enumerate(clients))
        )
        connections = _connections(service)
    # The kernel spreads connections: that all of them go to one of two is one chance in 32,768.
    assert len(connections) == FRONTENDS
    assert min(connections.values()) > 0
    assert sum(connections.values()) == CHANNELS
    after = service.scrape_idle()
    _check_requests(tally, before, after)
    for name, launches in LAUNCHES.items():
        _check_batches(tally, name, launches, after)
    _check_hops(tally, after)


def _check_requests(tally: Tally, before: Scrape, after: Scrape) -> None:
    counted = after.by_label("gatefuse_requests_total", "code", method="ModelInfer")
    assert counted == dict(tally.codes)
    assert sum(tally.codes.values()) == CHANNELS * REQUESTS
    assert set(tally.codes) == {"OK", "NOT_FOUND", "INVALID_ARGUMENT"}
    refused = after.by_label("gatefuse_requests_invalid_total", "reason")
    assert sum(refused.values()) == tally.codes["NOT_FOUND"] + tally.codes["INVALID_ARGUMENT"]
    durations = after.by_label(
        "gatefuse_request_duration_seconds_count", "outcome", method="ModelInfer"
    )
    assert durations == {"ok": tally.codes["OK"], "client": sum(refused.values())}
    # Each client asks once for the metadata of each model that it uses.
    asked = after.value("gatefuse_requests_total", method="ModelMetadata", code="OK")
    assert (
        asked - before.value("gatefuse_requests_total", method="ModelMetadata", code="OK")
        >= CHANNELS
    )


def _check_batches(tally: Tally, name: str, launches: int, after: Scrape) -> None:
    """Rows in are rows out, and every batch launched what its backend launches."""
    labels = {"model": name, "backend": name}
    batches = after.value("gatefuse_batch_rows_count", **labels)
    rows = tally.rows[name]
    assert after.value("gatefuse_request_rows_sum", **labels) == rows
    assert after.value("gatefuse_request_rows_count", **labels) == tally.requests[name]
    # No worker died, so no row was run twice.
    assert after.value("gatefuse_batch_rows_sum", **labels) == rows
    assert after.value("gatefuse_batch_rows_bucket", le=f"{MAX_BATCH_ROWS}.0", **labels) == batches
    assert after.value("gatefuse_batch_requests_sum", **labels) == sum(
        -(-rows // MAX_BATCH_ROWS) for _, rows in tally.costs[name]
    )
    assert after.value("gatefuse_kernel_launches_total", **labels) == launches * batches
    assert (
        after.value("gatefuse_inference_duration_seconds_count", **labels) == tally.requests[name]
    )
    assert after.value("gatefuse_queue_wait_seconds_count", **labels) == tally.requests[name]
    assert after.value("gatefuse_batch_padding_rows_total", **labels) == 0
    # The closed forms: three products a row, the weights read once a batch, the rest once for each row.
    assert after.value("gatefuse_flops_modelled_total", **labels) == rows * INTERMEDIATE * (
        6 * HIDDEN + ACTIVATION_FLOPS + 1
    )
    moved = after.value("gatefuse_dram_bytes_modelled_total", **labels)
    weights = 3 * HIDDEN * INTERMEDIATE
    assert moved == (batches * weights + rows * ELEMENTS_PER_ROW[name]) * BF16_BYTES
    _check_costs(tally, name, launches)


def _check_costs(tally: Tally, name: str, launches: int) -> None:
    """What each answer says of its own batches."""
    for cost, rows in tally.costs[name]:
        batches = -(-rows // MAX_BATCH_ROWS)
        assert cost.backend == name
        assert cost.kernel_launches == launches * batches
        assert rows <= cost.batch_rows <= batches * MAX_BATCH_ROWS


def _check_hops(tally: Tally, after: Scrape) -> None:
    hops = after.by_label("gatefuse_transfer_bytes_total", "hop")
    assert hops == dict.fromkeys(
        ("grpc_in", "grpc_out", "to_replica", "from_replica"), tally.payload_bytes
    )


def test_device_is_never_busier_than_there_is_time(service: Service) -> None:
    found = service.scrape()
    assert 0 < found.value("gatefuse_device_busy_seconds_total") < 600
    ended = found.by_label("gatefuse_replica_call_seconds_count", "outcome")
    assert ended == {"ok": found.value("gatefuse_batches_total")}
    assert found.value("gatefuse_batches_total") == found.value("gatefuse_batch_rows_count")


def test_replicas_and_models_are_described(service: Service) -> None:
    found = service.scrape()
    assert found.by_label("gatefuse_replicas", "state") == {"ready": 1}
    described = found.by_label("gatefuse_model_info", "model")
    assert described == {"fused": 1, "eager": 1, "identity": 1}
    # Both frontends have a queue of this size for the model.
    assert found.value("gatefuse_queue_capacity_rows", model="fused") == FRONTENDS * 8192
    weights = {
        dict(labels)["weights"]
        for (name, labels) in found.series
        if name == "gatefuse_model_info" and dict(labels)["model"] in LAUNCHES
    }
    assert len(weights) == 1


@pytest.mark.slow
@pytest.mark.asyncio
async def test_one_of_the_frontends_killed(service: Service, tiny_llama: TensorFile) -> None:
    """Its clients connect to the other, or to the one that replaces it; nothing that was counted is forgotten."""
    before = service.scrape_idle()
    victim = service.frontend_pids()[0]
    x = tiny_llama["layer.0.input"][:3]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AioClient(service.url, timeout_s=60, retry=NO_RETRY))
            for _ in range(CHANNELS)
        ]
        for client in clients:
            await client.infer("fused", x, layer=0)
        psutil.Process(victim).kill()
        ended: Counter[str] = Counter()
        for _ in range(20):
            for client in clients:
                try:
                    await client.infer("fused", x, layer=0)
                    ended["OK"] += 1
                except InferenceError as error:
                    ended[error.code.name] += 1
            await asyncio.sleep(0.05)
    assert set(ended) <= {"OK", "UNAVAILABLE"}
    assert ended["OK"] > CHANNELS * 10

    def replaced() -> bool:
        pids = service.frontend_pids()
        return len(pids) == FRONTENDS and victim not in pids

    await asyncio.to_thread(wait_until, replaced, 60, "a new frontend")
    after = service.scrape_idle()
    assert after.fallen_since(before) == []
    assert after.value("gatefuse_replica_restarts_total") == 0

    def both_queues() -> bool:
        capacity = service.scrape().value("gatefuse_queue_capacity_rows", model="fused")
        return capacity == FRONTENDS * 8192

    await asyncio.to_thread(wait_until, both_queues, 60, "the gauges of the living alone")
