"""Every method that tritonclient's gRPC clients have, each in one test, against running servers."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils.shared_memory as triton_shm
from numpy.typing import NDArray
from tests.integration.harness import CHECKPOINT, Service, Start
from tests.integration.triton_clients import (
    CLASSES,
    TritonClient,
    connected,
    public_methods,
    refused,
)
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.auth import BasicAuth

Code = grpc.StatusCode
Array = NDArray[np.float32]

COLUMNS = 5
GATE = {
    "name": "gate",
    "kind": "elementwise",
    "expression": "y = max(a, b) - b; z = a - 2 * b",
    "backend": "eager",
    "dtype": "fp32",
    "columns": COLUMNS,
}
LLAMA = {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"}


COVERED: set[str] = set()
"""The methods that some test below is about."""

Test = TypeVar("Test", bound=Callable[..., None])


def covers(*methods: str) -> Callable[[Test], Test]:
    """Says which methods a test is about."""

    def note(test: Test) -> Test:
        COVERED.update(methods)
        return test

    return note


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    """What a server is without being told more."""
    return start({"device": "cpu", "models": [LLAMA, GATE]})


@pytest.fixture(scope="module")
def open_service(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A server with all that is off by default."""
    trace_file = tmp_path_factory.mktemp("trace") / "trace.json"
    extras = {
        "allow_client_shm": True,
        "model_control": "explicit",
        "trace_file": str(trace_file),
    }
    return start({"device": "cpu", "models": [LLAMA, GATE], **extras})


@pytest.fixture(params=list(CLASSES))
def client(service: Service, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with connected(request.param, service.url) as client:
        yield client


@pytest.fixture(params=list(CLASSES))
def open_client(open_service: Service, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with connected(request.param, open_service.url) as client:
        yield client


def _rows(rows: int = 2, seed: int = 0) -> dict[str, Array]:
    a, b = np.random.default_rng(seed).standard_normal((2, rows, COLUMNS)).astype(np.float32)
    return {"a": a, "b": b}


def _inputs(rows: dict[str, Array]) -> list[InferInput]:
    return [
        InferInput(name, list(x.shape), "FP32").set_data_from_numpy(x) for name, x in rows.items()
    ]


def _check(result: Any, rows: dict[str, Array]) -> None:
    np.testing.assert_array_equal(result.as_numpy("z"), rows["a"] - 2 * rows["b"])


def _wrong_inputs() -> list[InferInput]:
    x = np.zeros((1, COLUMNS + 1), np.float32)
    return _inputs({"a": x, "b": x})


@covers("is_server_live")
def test_is_server_live(client: TritonClient) -> None:
    assert client.is_server_live() is True


@covers("is_server_ready")
def test_is_server_ready(client: TritonClient) -> None:
    assert client.is_server_ready() is True


@covers("is_model_ready")
def test_is_model_ready(client: TritonClient) -> None:
    assert client.is_model_ready("gate") is True
    assert client.is_model_ready("gate", "1") is True
    with refused(Code.NOT_FOUND, "no model is named 'absent'"):
        client.is_model_ready("absent")
    with refused(Code.NOT_FOUND, "no version 2"):
        client.is_model_ready("gate", "2")
    with refused(Code.INVALID_ARGUMENT, "non-negative integer"):
        client.is_model_ready("gate", "newest")


@covers("get_server_metadata")
def test_get_server_metadata(client: TritonClient) -> None:
    metadata = client.get_server_metadata()
    assert metadata.name == "gatefuse"
    assert {"binary_tensor_data", "parameters", "statistics", "model_configuration"} <= {
        *metadata.extensions
    }
    off = {"system_shared_memory", "cuda_shared_memory", "model_repository", "sequence"}
    assert not off & {*metadata.extensions}
    assert client.get_server_metadata(as_json=True)["name"] == "gatefuse"


def test_get_server_metadata_lists_what_is_on(open_client: TritonClient) -> None:
    extensions = {*open_client.get_server_metadata().extensions}
    assert {"system_shared_memory", "model_repository"} <= extensions


@covers("get_model_metadata")
def test_get_model_metadata(client: TritonClient) -> None:
    metadata = client.get_model_metadata("gate")
    assert [tensor.name for tensor in metadata.inputs] == ["a", "b"]
    assert [tensor.name for tensor in metadata.outputs] == ["y", "z"]
    assert {tensor.datatype for tensor in metadata.inputs} == {"FP32"}
    assert [*metadata.inputs[0].shape] == [-1, COLUMNS]
    with refused(Code.NOT_FOUND, "no model is named"):
        client.get_model_metadata("absent")
    with refused(Code.INVALID_ARGUMENT):
        client.get_model_metadata("gate", "-1")


@covers("get_model_config")
def test_get_model_config(client: TritonClient) -> None:
    config = client.get_model_config("llama-ffn").config
    assert config.name == "llama-ffn"
    assert [tensor.name for tensor in config.input] == ["hidden_states"]
    assert config.input[0].data_type == tritonclient.grpc.model_config_pb2.TYPE_BF16
    # With a batch dimension the configuration leaves it out, and metadata has it.
    assert [*config.input[0].dims] == ([256] if config.max_batch_size else [-1, 256])
    assert not config.model_transaction_policy.decoupled
    as_json = client.get_model_config("gate", as_json=True)["config"]
    assert [tensor["name"] for tensor in as_json["output"]] == ["y", "z"]
    with refused(Code.NOT_FOUND):
        client.get_model_config("absent")


@covers("get_model_repository_index")
def test_get_model_repository_index(client: TritonClient) -> None:
    index = client.get_model_repository_index()
    assert [(model.name, model.version, model.state) for model in index.models] == [
        ("llama-ffn", "1", "READY"),
        ("gate", "1", "READY"),
    ]


@covers("get_inference_statistics")
def test_get_inference_statistics(client: TritonClient) -> None:
    def counts() -> tuple[int, int, int]:
        (model,) = client.get_inference_statistics("gate").model_stats
        stats = model.inference_stats
        return model.inference_count, stats.success.count, stats.fail.count

    before = counts()
    for rows in (1, 4):
        client.infer("gate", _inputs(_rows(rows)))
    with refused(Code.INVALID_ARGUMENT):
        client.infer("gate", _wrong_inputs())
    after = counts()
    inferences, successes, failures = (b - a for a, b in zip(before, after, strict=True))
    assert (inferences, successes, failures) == (5, 2, 1)  # the protocol counts rows as inferences
    assert {model.name for model in client.get_inference_statistics().model_stats} == {
        "llama-ffn",
        "gate",
    }
    with refused(Code.NOT_FOUND):
        client.get_inference_statistics("absent")


@covers("infer")
def test_infer(client: TritonClient) -> None:
    rows = _rows(3)
    result = client.infer(
        "gate",
        _inputs(rows),
        model_version="1",
        outputs=[InferRequestedOutput("z")],
        request_id="seven",
        priority=1,
        timeout=10_000_000,
        client_timeout=30,
        headers={"x-of-the-caller": "1"},
        compression_algorithm="gzip",
        parameters={"layer": 0},
    )
    _check(result, rows)
    assert result.as_numpy("y") is None
    assert result.get_response().id == "seven"
    with refused(Code.NOT_FOUND):
        client.infer("absent", _inputs(rows))
    with refused(Code.INVALID_ARGUMENT):
        client.infer("gate", _wrong_inputs())
    with refused(Code.INVALID_ARGUMENT, "missing"):
        client.infer("gate", _inputs(rows)[:1])
    with refused(Code.INVALID_ARGUMENT, "outputs of 'gate' are"):
        client.infer("gate", _inputs(rows), outputs=[InferRequestedOutput("absent")])


@covers("async_infer")
def test_async_infer(service: Service) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(service.url) as client:
        for number in range(20):
            client.async_infer(
                "gate",
                _inputs(_rows(1 + number % 3, number)),
                lambda result, error: answers.put((result, error)),
                request_id=str(number),
            )
        received = [answers.get(timeout=30) for _ in range(20)]
        assert not [error for _, error in received if error]
        for result, _ in received:
            number = int(result.get_response().id)
            _check(result, _rows(1 + number % 3, number))
        call = client.async_infer("gate", _inputs(_rows()), lambda result, error: None)
        call.cancel()
        assert client.is_server_live()


def _stream_requests(count: int) -> list[dict[str, Any]]:
    return [
        {
            "model_name": "gate",
            "inputs": _inputs(_rows(1 + number % 4, number)),
            "request_id": str(number),
        }
        for number in range(count)
    ]


def _check_stream(client: TritonClient) -> None:
    requests = _stream_requests(40)
    requests[13]["model_name"] = "absent"
    received = client.stream(requests)
    assert len(received) == 40
    errors = [str(error) for _, error in received if error]
    assert len(errors) == 1
    assert "no model is named 'absent'" in errors[0]
    results = {result.get_response().id: result for result, error in received if not error}
    assert set(results) == {str(number) for number in range(40)} - {"13"}
    for request_id, result in results.items():
        _check(result, _rows(1 + int(request_id) % 4, int(request_id)))


@covers("start_stream", "async_stream_infer", "stop_stream")
def test_stream_with_callbacks(service: Service) -> None:
    with connected("grpc", service.url) as client:
        _check_stream(client)
        _check_stream(client)  # a client may start another
        client.client.start_stream(lambda result, error: None)
        client.client.async_stream_infer(**_stream_requests(1)[0])
        client.client.stop_stream(cancel_requests=True)
        assert client.is_server_live()


@covers("stream_infer")
def test_stream_of_the_asyncio_client(service: Service) -> None:
    with connected("grpc.aio", service.url) as client:
        _check_stream(client)


def test_model_control_is_off(client: TritonClient) -> None:
    with refused(Code.UNAVAILABLE, "--model-control explicit"):
        client.load_model("gate")
    with refused(Code.UNAVAILABLE, "--model-control explicit"):
        client.unload_model("gate")
    assert client.is_model_ready("gate")


@covers("load_model", "unload_model")
def test_model_control(open_client: TritonClient) -> None:
    open_client.unload_model("gate")
    assert not open_client.is_model_ready("gate")
    states = {m.name: m.state for m in open_client.get_model_repository_index().models}
    assert states == {"llama-ffn": "READY", "gate": "UNAVAILABLE"}
    with refused(Code.UNAVAILABLE):
        open_client.infer("gate", _inputs(_rows()))
    open_client.load_model("gate")
    assert open_client.is_model_ready("gate")
    _check(open_client.infer("gate", _inputs(_rows())), _rows())
    with refused(Code.INVALID_ARGUMENT):
        open_client.unload_model("absent")
    with refused(Code.INVALID_ARGUMENT):
        open_client.load_model("absent")
    with refused(Code.INVALID_ARGUMENT):
        open_client.load_model("gate", config="{")
    with refused(Code.INVALID_ARGUMENT):
        files = {"file:1/model.safetensors": b"weights of a stranger"}
        open_client.load_model("gate", config=json.dumps({}), files=files)
    assert open_client.is_model_ready("gate")


@contextmanager
def _region(size_bytes: int) -> Iterator[tuple[str, Any]]:
    key = f"/gatefuse-test-{uuid4().hex}"
    region = triton_shm.create_shared_memory_region(key, key, size_bytes)
    try:
        yield key, region
    finally:
        triton_shm.destroy_shared_memory_region(region)


def test_system_shared_memory_is_off(client: TritonClient) -> None:
    with _region(64) as (key, _):
        with refused(Code.UNIMPLEMENTED, "--allow-client-shm"):
            client.register_system_shared_memory("region", key, 64)
        with refused(Code.UNIMPLEMENTED):
            client.unregister_system_shared_memory("region")
        with refused(Code.UNIMPLEMENTED):
            client.get_system_shared_memory_status()


@covers(
    "register_system_shared_memory",
    "get_system_shared_memory_status",
    "unregister_system_shared_memory",
)
def test_system_shared_memory(open_client: TritonClient) -> None:
    rows = _rows(3)
    tensor_bytes = rows["a"].nbytes
    with _region(4 * tensor_bytes) as (key, region):
        triton_shm.set_shared_memory_region(region, [rows["a"], rows["b"]])
        open_client.register_system_shared_memory("rows", key, 4 * tensor_bytes)
        try:
            status = open_client.get_system_shared_memory_status("rows").regions["rows"]
            assert (status.key, status.offset, status.byte_size) == (key, 0, 4 * tensor_bytes)
            with refused(Code.ALREADY_EXISTS):
                open_client.register_system_shared_memory("rows", key, 4 * tensor_bytes)
            inputs = [InferInput(name, [3, COLUMNS], "FP32") for name in "ab"]
            outputs = [InferRequestedOutput(name) for name in "yz"]
            for number, tensor in enumerate((*inputs, *outputs)):
                tensor.set_shared_memory("rows", tensor_bytes, number * tensor_bytes)
            result = open_client.infer("gate", inputs, outputs=outputs)
            assert [*result.get_response().raw_output_contents] == [b"", b""]  # places, by number
            z = triton_shm.get_contents_as_numpy(region, np.float32, [3, COLUMNS], 3 * tensor_bytes)
            np.testing.assert_array_equal(z, rows["a"] - 2 * rows["b"])
            inputs[0].set_shared_memory("rows", tensor_bytes, 4 * tensor_bytes)
            with refused(Code.INVALID_ARGUMENT):
                open_client.infer("gate", inputs)
        finally:
            open_client.unregister_system_shared_memory("rows")
        with refused(Code.NOT_FOUND):
            open_client.get_system_shared_memory_status("rows")
    with refused(Code.INVALID_ARGUMENT):
        open_client.register_system_shared_memory("rows", "/gatefuse-test-absent", 64)
    open_client.unregister_system_shared_memory()
    assert not open_client.get_system_shared_memory_status().regions


@covers(
    "register_cuda_shared_memory", "get_cuda_shared_memory_status", "unregister_cuda_shared_memory"
)
def test_cuda_shared_memory_is_off(client: TritonClient) -> None:
    with refused(Code.UNIMPLEMENTED, "--allow-client-shm"):
        client.register_cuda_shared_memory("region", b"bm8gaGFuZGxl", 0, 64)
    with refused(Code.UNIMPLEMENTED):
        client.unregister_cuda_shared_memory("region")
    with refused(Code.UNIMPLEMENTED):
        client.get_cuda_shared_memory_status()


def test_cuda_shared_memory_without_a_gpu(open_client: TritonClient) -> None:
    with refused(Code.UNIMPLEMENTED, "no worker of this server has a GPU"):
        open_client.register_cuda_shared_memory("region", b"bm8gaGFuZGxl", 0, 64)


@covers("update_trace_settings", "get_trace_settings")
def test_trace_settings(open_client: TritonClient) -> None:
    before = open_client.get_trace_settings().settings
    assert [*before["trace_level"].value] == ["OFF"]
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "7", "trace_count": "3"}
    changed = open_client.update_trace_settings(settings=settings).settings
    try:
        assert [*changed["trace_level"].value] == ["TIMESTAMPS"]
        assert [*open_client.get_trace_settings().settings["trace_rate"].value] == ["7"]
        with refused(Code.INVALID_ARGUMENT):
            open_client.update_trace_settings(settings={"trace_rate": "often"})
        with refused(Code.UNIMPLEMENTED):
            open_client.update_trace_settings(settings={"trace_file": "/tmp/of-a-stranger"})
    finally:
        back = {"trace_level": ["OFF"], "trace_rate": None, "trace_count": None}
        open_client.update_trace_settings(settings=back)
    assert [*open_client.get_trace_settings().settings["trace_level"].value] == ["OFF"]


@covers("update_log_settings", "get_log_settings")
def test_log_settings(open_client: TritonClient) -> None:
    before = open_client.get_log_settings(as_json=True)["settings"]
    assert "log_verbose_level" in before
    try:
        open_client.update_log_settings({"log_verbose_level": 1})
        settings = open_client.get_log_settings().settings
        assert settings["log_verbose_level"].uint32_param == 1
        with refused(Code.INVALID_ARGUMENT):
            open_client.update_log_settings({"of_no_server": True})
        with refused(Code.UNIMPLEMENTED):
            open_client.update_log_settings({"log_file": "/tmp/of-a-stranger"})
    finally:
        open_client.update_log_settings({"log_verbose_level": 0})


@covers("register_plugin", "plugin", "unregister_plugin")
def test_plugins(client: TritonClient) -> None:
    plugin = BasicAuth("user", "secret")
    client.client.register_plugin(plugin)
    assert client.client.plugin() is plugin
    assert client.is_server_live()
    _check(client.infer("gate", _inputs(_rows())), _rows())
    client.client.unregister_plugin()
    assert client.client.plugin() is None


@covers("close")
@pytest.mark.parametrize("kind", list(CLASSES))
def test_close(service: Service, kind: str) -> None:
    with connected(kind, service.url) as client:
        assert client.is_server_live()
        client.close()
        with pytest.raises((ValueError, grpc.aio.UsageError), match=r"(?i)closed"):
            client.is_server_live()


@pytest.mark.parametrize("kind", list(CLASSES))
def test_no_method_is_left_out(kind: str) -> None:
    assert public_methods(kind) <= COVERED
    assert {name for other in CLASSES for name in public_methods(other)} >= COVERED
