"""Streams, configuration and statistics of a service with two frontends, as tritonclient sees them."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from numpy.typing import NDArray
from tests.integration.harness import Service, Start, free_port, wait_until
from tritonclient.utils import InferenceServerException

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.wire import Datatype

COLUMNS = 5
WIDE, WIDE_ROWS = 4096, 64
REQUESTS = 200
CONNECTIONS = 6
Array = NDArray[np.float32]


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    model = {
        "name": "double",
        "kind": "elementwise",
        "expression": "2 * x",
        "columns": COLUMNS,
        "dtype": "fp32",
        "backend": "eager",
        "batching": {
            "max_batch_rows": 16,
            "max_queue_delay_us": 500,
            "priority_levels": 4,
            "default_priority_level": 3,
            "queue_policy": {"timeout_action": "delay", "default_timeout_us": 900_000},
        },
    }
    ports = {"grpc_port": free_port(), "frontends": 2}
    wide = {**model, "name": "wide", "columns": WIDE, "batching": {"max_batch_rows": WIDE_ROWS}}
    return start({"device": "cpu", **ports, "models": [model, wide]})


def _input(x: Array) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput("x", list(x.shape), "FP32")
    return tensor.set_data_from_numpy(x)


def _rows(number: int) -> Array:
    """Rows that no other number has: between 1 and 7."""
    return np.full((number % 7 + 1, COLUMNS), number, np.float32)


def _client(service: Service) -> tritonclient.grpc.InferenceServerClient:
    # Each with a connection of its own: the kernel gives it to one of the frontends.
    options = [("grpc.use_local_subchannel_pool", 1)]
    return tritonclient.grpc.InferenceServerClient(service.url, channel_args=options)


def test_many_requests_on_a_stream_of_the_callback_client(service: Service) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with _client(service) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(REQUESTS):
            client.async_stream_infer(
                "double", [_input(_rows(number))], request_id=str(number), priority=number % 5
            )
        found = {}
        for _ in range(REQUESTS):
            result, error = answers.get(timeout=30)
            assert error is None
            found[int(result.get_response().id)] = result.as_numpy("y")
        client.stop_stream()
    assert set(found) == set(range(REQUESTS))
    for number, output in found.items():
        np.testing.assert_array_equal(output, 2 * _rows(number))


def test_an_error_comes_with_its_request_and_the_stream_goes_on(service: Service) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    wrong = np.zeros((1, COLUMNS + 1), np.float32)
    with _client(service) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("double", [_input(wrong)], request_id="wrong")
        result, error = answers.get(timeout=30)
        assert isinstance(error, InferenceServerException)
        assert "columns" in str(error)
        client.async_stream_infer("double", [_input(_rows(3))], request_id="right")
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.get_response().id == "right"
        assert result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()


@pytest.mark.asyncio
async def test_the_asyncio_client_streams(service: Service) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(REQUESTS):
            yield {
                "model_name": "double",
                "inputs": [_input(_rows(number))],
                "request_id": str(number),
            }

    found = set()
    async with tritonclient.grpc.aio.InferenceServerClient(service.url) as client:
        stream = client.stream_infer(requests(), stream_timeout=60)
        async for result, error in stream:
            assert error is None
            number = int(result.get_response().id)
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * _rows(number))
            found.add(number)
            if len(found) == REQUESTS:
                break
    assert len(found) == REQUESTS


def test_the_configuration_is_the_services(service: Service) -> None:
    with _client(service) as client:
        config = client.get_model_config("double", as_json=True)["config"]
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("double", "eager", 16)
    assert config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": ["5"]}
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    batching = config["dynamic_batching"]
    assert (batching["priority_levels"], batching["default_priority_level"]) == ("4", "3")
    assert batching["max_queue_delay_microseconds"] == "500"
    assert batching["default_queue_policy"]["timeout_action"] == "DELAY"


def _statistics(service: Service) -> Any:
    with _client(service) as client:
        (statistics,) = client.get_inference_statistics("double").model_stats
    return statistics


def test_statistics_are_of_all_frontends_and_agree_with_the_metrics(service: Service) -> None:
    before = _statistics(service)
    numbers = range(60)
    clients = [_client(service) for _ in range(CONNECTIONS)]
    for number in numbers:
        clients[number % CONNECTIONS].infer("double", [_input(_rows(number))])
    for client in clients:
        client.close()
    rows = sum(len(_rows(number)) for number in numbers)
    # Whichever frontend is asked, it knows of all requests at once.
    for _ in range(CONNECTIONS):
        after = _statistics(service)
        assert after.inference_count - before.inference_count == rows
        assert after.inference_stats.success.count - before.inference_stats.success.count == 60
    assert sum(batch.compute_infer.count for batch in after.batch_stats) == after.execution_count
    stats = after.inference_stats
    parts = (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    assert sum(part.ns for part in parts) <= stats.success.ns

    def metrics_agree() -> bool:
        scrape = service.scrape()
        rows = scrape.value("gatefuse_request_rows_sum", model="double")
        batches = scrape.value("gatefuse_batch_rows_count", model="double")
        return (rows, batches) == (float(after.inference_count), float(after.execution_count))

    wait_until(metrics_agree, 5, "the metrics show what the statistics do")


def test_concurrent_streams_do_not_mix(service: Service) -> None:
    async def one(offset: int) -> None:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(offset, offset + 50):
                yield {
                    "model_name": "double",
                    "inputs": [_input(_rows(number))],
                    "request_id": str(number),
                }

        seen = set()
        async with tritonclient.grpc.aio.InferenceServerClient(service.url) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                number = int(result.get_response().id)
                np.testing.assert_array_equal(result.as_numpy("y"), 2 * _rows(number))
                seen.add(number)
                if len(seen) == 50:
                    break
        assert seen == set(range(offset, offset + 50))

    async def all_of_them() -> None:
        await asyncio.gather(*(one(offset) for offset in range(0, 400, 50)))

    asyncio.run(all_of_them())


def test_a_client_that_goes_without_its_answers_leaves_no_traceback(service: Service) -> None:
    """It takes one of many large answers, so that the server waits in a write when it cancels."""
    x = np.ones((WIDE_ROWS, WIDE), np.float32)
    message = infer_request("wide", {"x": Rows(x.tobytes(), x.shape, Datatype.FP32)})
    content = message.SerializeToString()

    def stands() -> bool:
        batches = service.scrape().value("gatefuse_batches_total")
        time.sleep(0.3)
        return service.scrape().value("gatefuse_batches_total") == batches

    with grpc.insecure_channel(service.url) as channel:
        for _ in range(3):
            infer: Any = channel.stream_stream(method("ModelStreamInfer"))
            call = infer(iter([content] * 60))
            next(call)
            wait_until(stands, 20, "all that may wait for the client is computed")
            call.cancel()
    with _client(service) as client:
        result = client.infer("double", [_input(_rows(3))])
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * _rows(3))
    assert "Traceback" not in service.log, service.log


def test_thousands_of_calls_at_once_are_answered_or_refused(service: Service) -> None:
    """GRPC's own limit would answer those that wait to be taken CANCELLED, as if the client had."""
    x = _rows(3)
    message = infer_request("double", {"x": Rows(x.tobytes(), x.shape, Datatype.FP32)})
    content = message.SerializeToString()
    with grpc.insecure_channel(service.url) as channel:
        infer: Any = channel.unary_unary(method("ModelInfer"))
        calls = [infer.future(content, timeout=60) for _ in range(5000)]
        codes = Counter(call.code() for call in calls)
    assert codes[grpc.StatusCode.OK] > 0
    assert codes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
