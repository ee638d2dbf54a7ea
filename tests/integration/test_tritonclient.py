"""The client that users of the protocol have already: tritonclient from PyPI, as it is."""

from __future__ import annotations

import queue
import subprocess
import sys
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from numpy.typing import NDArray
from tests.integration.harness import CHECKPOINT, Service, Start
from tritonclient.utils import InferenceServerException

from gatefuse.commands.loadtest.tensors import TensorFile

Array: TypeAlias = NDArray[Any]

LAYERS = range(4)
# As in test_exact.py.
FUSED_GATE = 2.6e-3
# What tritonclient takes for a datatype: for BF16 it wants ml_dtypes' array.
NUMPY_TYPES = {"BF16": ml_dtypes.bfloat16, "FP32": np.float32}

# Our stubs and tritonclient's define the same protobuf package; both clients are used in one process.
BOTH_AT_WORK = """
import sys
import numpy as np
url = sys.argv[1]
x = np.linspace(-2, 2, 512, dtype=np.float32).reshape(2, 256)
tensor = tritonclient.grpc.InferInput("hidden_states", x.shape, "FP32").set_data_from_numpy(x)
with tritonclient.grpc.InferenceServerClient(url) as theirs, Client(url) as ours:
    answer = theirs.infer("llama-ffn", [tensor], parameters={"layer": 1}).as_numpy("output")
    np.testing.assert_array_equal(ours.infer("llama-ffn", x, layer=1).output, answer)
    assert theirs.get_model_metadata("llama-ffn").platform == ours.model_metadata("llama-ffn").platform
"""
OURS = "from gatefuse.client.blocking import Client\n"
THEIRS = "import tritonclient.grpc\n"


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    model = {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"}
    gate = {
        "name": "gate",
        "kind": "elementwise",
        "expression": "y = max(a, b) - b; z = a - 2 * b",
        "backend": "eager",
        "dtype": "fp32",
    }
    return start({"device": "cpu", "models": [model, gate]})


def _input(x: Array, datatype: str) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput("hidden_states", list(x.shape), datatype)
    return tensor.set_data_from_numpy(x.astype(NUMPY_TYPES[datatype]))


def _check(result: tritonclient.grpc.InferResult, exact: Array, datatype: str) -> None:
    output = result.as_numpy("output")
    assert output.dtype == NUMPY_TYPES[datatype]
    assert output.shape == exact.shape
    error = np.linalg.norm(output.astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error <= FUSED_GATE
    response = result.get_response()
    assert response.parameters["kernel_launches"].int64_param == 2
    assert response.parameters["batch_rows"].int64_param == len(exact)
    assert response.parameters["backend"].string_param == "fused"


def _check_metadata(server: Any, model: Any) -> None:
    assert server.name == "gatefuse"
    assert server.version
    assert model.name == "llama-ffn"
    assert model.platform == "gatefuse"
    assert [*model.versions] == ["1"]
    tensor = model.inputs[0]
    assert (tensor.name, tensor.datatype, [*tensor.shape]) == ("hidden_states", "BF16", [-1, 256])


def test_several_inputs_and_outputs(service: Service) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 5, 7)).astype(np.float32)
    tensors = [
        tritonclient.grpc.InferInput(name, [5, 7], "FP32").set_data_from_numpy(x)
        for name, x in (("b", b), ("a", a))
    ]
    with tritonclient.grpc.InferenceServerClient(service.url) as client:
        metadata = client.get_model_metadata("gate")
        assert [tensor.name for tensor in metadata.inputs] == ["a", "b"]
        assert [tensor.name for tensor in metadata.outputs] == ["y", "z"]
        both = client.infer("gate", tensors)
        np.testing.assert_array_equal(both.as_numpy("y"), np.maximum(a, b) - b)
        np.testing.assert_array_equal(both.as_numpy("z"), a - 2 * b)
        wanted = [tritonclient.grpc.InferRequestedOutput("z")]
        one = client.infer("gate", tensors, outputs=wanted)
        np.testing.assert_array_equal(one.as_numpy("z"), a - 2 * b)
        assert one.as_numpy("y") is None
        with pytest.raises(InferenceServerException, match="input 'b' is missing"):
            client.infer("gate", tensors[1:])


def test_blocking_client(service: Service, tiny_llama: TensorFile) -> None:
    with tritonclient.grpc.InferenceServerClient(service.url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("llama-ffn")
        assert client.is_model_ready("llama-ffn", "1")
        _check_metadata(client.get_server_metadata(), client.get_model_metadata("llama-ffn"))
        index = client.get_model_repository_index()
        assert {model.name: model.state for model in index.models} == dict.fromkeys(
            ("llama-ffn", "gate"), "READY"
        )
        for layer in LAYERS:
            x, exact = tiny_llama[f"layer.{layer}.input"], tiny_llama[f"layer.{layer}.output_f64"]
            for datatype in NUMPY_TYPES:
                result = client.infer(
                    "llama-ffn",
                    [_input(x, datatype)],
                    model_version="1",
                    outputs=[tritonclient.grpc.InferRequestedOutput("output")],
                    request_id=f"{layer}-{datatype}",
                    parameters={"layer": layer},
                    client_timeout=30,
                )
                assert result.get_response().id == f"{layer}-{datatype}"
                _check(result, exact, datatype)


@pytest.mark.asyncio
async def test_asyncio_client(service: Service, tiny_llama: TensorFile) -> None:
    async with tritonclient.grpc.aio.InferenceServerClient(service.url) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("llama-ffn")
        _check_metadata(
            await client.get_server_metadata(), await client.get_model_metadata("llama-ffn")
        )
        for layer in LAYERS:
            x, exact = tiny_llama[f"layer.{layer}.input"], tiny_llama[f"layer.{layer}.output_f64"]
            for datatype in NUMPY_TYPES:
                result = await client.infer(
                    "llama-ffn", [_input(x, datatype)], parameters={"layer": layer}
                )
                _check(result, exact, datatype)


def test_callback_style_calls(service: Service, tiny_llama: TensorFile) -> None:
    """Its own concurrency: many calls in flight on one channel, answers by callback."""
    x, exact = tiny_llama["layer.1.input"], tiny_llama["layer.1.output_f64"]
    answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(service.url) as client:
        for row in range(len(x)):
            client.async_infer(
                "llama-ffn",
                [_input(x[row : row + 1], "FP32")],
                lambda result, error, row=row: answers.put((row, result, error)),
                parameters={"layer": 1},
            )
        answered = set()
        for _ in range(len(x)):
            row, result, error = answers.get(timeout=30)
            assert error is None
            assert row not in answered
            answered.add(row)
            difference = result.as_numpy("output")[0] - exact[row]
            assert np.linalg.norm(difference) <= FUSED_GATE * np.linalg.norm(exact[row])
    assert answers.empty()


def test_errors_carry_their_status(service: Service) -> None:
    x = np.zeros((1, 256), np.float32)
    with tritonclient.grpc.InferenceServerClient(service.url) as client:
        with pytest.raises(InferenceServerException, match="no model is named") as unknown:
            client.infer("other", [_input(x, "FP32")])
        assert unknown.value.status() == "StatusCode.NOT_FOUND"
        with pytest.raises(InferenceServerException, match="set the int64 parameter") as missing:
            client.infer("llama-ffn", [_input(x, "FP32")])
        assert missing.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException) as version:
            client.get_model_metadata("llama-ffn", "2")
        assert version.value.status() == "StatusCode.NOT_FOUND"
        with pytest.raises(InferenceServerException) as ready:
            client.is_model_ready("llama-ffn", "2")
        assert ready.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize(
    "imports", [OURS + THEIRS, THEIRS + OURS], ids=["ours-first", "theirs-first"]
)
def test_both_clients_in_one_process(service: Service, imports: str) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", imports + BOTH_AT_WORK, service.url],
        check=True,
        timeout=60,
    )
