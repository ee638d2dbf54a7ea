"""Both clients against a small server in another process."""

from __future__ import annotations

import asyncio
import copy
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
import torch
from numpy.typing import NDArray

import gatefuse
from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client, InferenceError
from gatefuse.client.messages import Cost, Rows, cost_of, infer_request, raw_result
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

HIDDEN = 256


@pytest.fixture
def client(fake_url: str) -> Iterator[Client]:
    with Client(fake_url, timeout_s=10) as client:
        yield client


@pytest_asyncio.fixture
async def aio_client(fake_url: str) -> AsyncIterator[AioClient]:
    async with AioClient(fake_url, timeout_s=10) as client:
        yield client


def _rows(*leading: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((*leading, HIDDEN)).astype(np.float32)


def test_health_and_descriptions(client: Client) -> None:
    assert client.is_live()
    assert client.is_ready()
    assert client.metadata().name == "fake"
    assert client.metadata().extensions == ("parameters",)
    assert client.model_ready("fused")
    assert not client.model_ready("slow")
    metadata = client.model_metadata("fused")
    assert metadata.platform == "gatefuse"
    assert metadata.inputs[0].name == "hidden_states"
    assert metadata.inputs[0].shape == (-1, HIDDEN)
    assert metadata.properties["backend"] == "fused"


def test_nobody_there_is_not_live_and_not_ready() -> None:
    with Client("127.0.0.1:1", timeout_s=5) as client:
        assert not client.is_live()
        assert not client.is_ready()
        assert not client.model_ready("fused")
        with pytest.raises(InferenceError) as caught:
            client.metadata()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def hung_url() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.asyncio
async def test_one_that_hangs_is_not_live_and_not_ready(hung_url: str) -> None:
    with Client(hung_url, timeout_s=0.3) as client:
        assert not client.is_live()
        assert not client.is_ready()
        assert not client.model_ready("fused")
    async with AioClient(hung_url, timeout_s=0.3) as aio_client:
        assert not await aio_client.is_live()
        assert not await aio_client.is_ready()
        assert not await aio_client.model_ready("fused")


@pytest.mark.parametrize("leading", [(), (1,), (5,), (2, 3), (0,), (2, 0)], ids=str)
def test_leading_dimensions_are_rows_and_come_back(
    client: Client, leading: tuple[int, ...]
) -> None:
    x = _rows(*leading)
    result = client.infer("identity", x)
    np.testing.assert_array_equal(result.output, x, strict=True)
    rows = x.size // HIDDEN
    assert result.cost == Cost(10, 20, 2 * rows, 5, 2_000_000, "eager")
    assert result.cost.share(rows) == (0.5 if rows else 0.0)


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        (np.float32, np.float32),
        (np.float16, np.float16),
        (np.float64, np.float32),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
@pytest.mark.parametrize("datatype", [None, "FP32", "FP16", Datatype.BF16])
def test_answer_has_the_arrays_dtype_whatever_travels(
    client: Client, sent: type, returned: type, datatype: str | None
) -> None:
    # Small whole numbers: exact in every one of the types.
    x: NDArray[Any] = np.arange(-8, 8).reshape(2, 8).astype(sent)
    output = client.infer("identity", x, datatype=datatype).output
    assert output.dtype == returned
    np.testing.assert_array_equal(output.astype(np.float64), x.astype(np.float64))
    assert output.flags.writeable


def test_bf16_on_the_wire_rounds_to_nearest(client: Client) -> None:
    x = np.full((1, 4), 0.01, np.float32)
    output = client.infer("identity", x, datatype="BF16").output
    np.testing.assert_array_equal(output, np.full((1, 4), 0.010009765625, np.float32), strict=True)


TORCH_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("datatype", [None, "FP32", "FP16", "BF16"])
def test_tensors_come_back_as_tensors(
    client: Client, dtype: torch.dtype, datatype: str | None
) -> None:
    x = torch.arange(-8.0, 8.0).reshape(2, 2, 4).transpose(0, 2).to(dtype)
    output = client.infer("identity", x, datatype=datatype).output
    assert output.dtype is (torch.float32 if dtype is torch.float64 else dtype)
    assert torch.equal(output, x.to(output.dtype))
    output.add_(1)  # its memory is its own


def test_tensors_round_to_nearest_even_as_torch_does(client: Client) -> None:
    # The halfway points between neighbours, their neighbours, and what overflows.
    bits = torch.arange(0x3F800000, 0x3F880000, 0x4000, dtype=torch.int32)
    x = torch.cat([bits, bits + 1, bits - 1]).view(torch.float32).reshape(1, -1)
    x = torch.cat([x, -x, torch.full_like(x, 3.4e38)])
    output = client.infer("identity", x, datatype="BF16").output
    assert torch.equal(output, x.to(torch.bfloat16).to(torch.float32))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (8,)], ids=str)
def test_tensors_of_odd_shapes(client: Client, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.float16)
    output = client.infer("identity", x, datatype="BF16").output
    assert output.shape == shape
    assert torch.equal(output, x)


def test_inputs_of_both_kinds_give_tensors(client: Client) -> None:
    inputs = _gate(2)
    u = torch.from_numpy(inputs["u"]).to(torch.bfloat16)
    outputs = client.infer("gate", {"g": inputs["g"], "u": u}).outputs
    expected = 0.5 * _silu(inputs["g"]) * u.float().numpy()
    assert outputs["y"].dtype is torch.float32
    np.testing.assert_allclose(outputs["y"].numpy(), expected, rtol=1e-5)


def test_what_is_no_array_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="not list"):
        client.infer("identity", [[1.0, 2.0]])
    with pytest.raises(TypeError, match="tensors of int32 cannot be sent"):
        client.infer("identity", torch.ones(1, 2, dtype=torch.int32))


def test_other_parameters_travel_by_their_type() -> None:
    rows = {"x": Rows(bytes(4), (1, 1), Datatype.FP32)}
    values: dict[str, Any] = {"a": True, "b": 3, "c": 0.5, "d": "text"}
    values |= {"e": np.bool_(True), "f": np.int64(3), "g": np.float32(0.5)}
    sent = infer_request("m", rows, layer=np.int64(2), parameters=values).parameters
    assert sent["layer"].int64_param == 2
    assert [sent[name].WhichOneof("parameter_choice") for name in values] == [
        "bool_param", "int64_param", "double_param", "string_param",
        "bool_param", "int64_param", "double_param",
    ]  # fmt: skip
    with pytest.raises(TypeError, match="str"):
        infer_request("m", rows, layer="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parameter 'e' must be bool, int, float or str, not list"):
        infer_request("m", rows, parameters={"e": [1]})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "datatype", [np.float16, np.dtype("float16"), torch.float16, "fp16"], ids=repr
)
def test_a_datatype_may_be_a_dtype(client: Client, datatype: Any) -> None:
    x = np.full((1, 4), 0.1, np.float32)
    output = client.infer("identity", x, datatype=datatype).output
    np.testing.assert_array_equal(output, x.astype(np.float16).astype(np.float32))


def test_layers_give_their_own_answers(client: Client) -> None:
    x = _rows(3)
    answers = [client.infer("fused", x, layer=layer).output for layer in range(4)]
    for layer, answer in enumerate(answers):
        np.testing.assert_array_equal(
            client.infer("eager", x, layer=layer).output, answer, strict=True
        )
        for other in answers[:layer]:
            assert not np.allclose(answer, other, rtol=0.1)


def _gate(*leading: int, dtype: type = np.float32) -> dict[str, NDArray[Any]]:
    g, u = np.random.default_rng(1).standard_normal((2, *leading, 8)).astype(dtype)
    return {"u": u, "g": g}


def _silu(x: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = x / (1 + np.exp(-x))
    return result


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)], ids=str)
def test_several_inputs_and_outputs_go_by_name(client: Client, leading: tuple[int, ...]) -> None:
    inputs = _gate(*leading)
    result = client.infer("gate", inputs)
    assert list(result.outputs) == ["y", "t"]
    t = 0.5 * _silu(inputs["g"])
    np.testing.assert_allclose(result.outputs["t"], t, rtol=1e-5)
    np.testing.assert_allclose(result.outputs["y"], t * inputs["u"], rtol=1e-5)
    assert {output.dtype for output in result.outputs.values()} == {np.dtype(np.float32)}
    assert {output.shape for output in result.outputs.values()} == {inputs["g"].shape}
    assert all(output.flags.writeable for output in result.outputs.values())
    with pytest.raises(ValueError, match=r"there are 2 outputs \(y, t\): name one"):
        _ = result.output


def test_one_output_of_several(client: Client) -> None:
    result = client.infer("gate", _gate(2), outputs=["t"], datatype="FP16")
    assert list(result.outputs) == ["t"]
    assert result.output is result.outputs["t"]


def test_inputs_of_several_types_travel_as_float32(client: Client) -> None:
    inputs = _gate(2)
    mixed = {"g": inputs["g"], "u": inputs["u"].astype(np.float16)}
    outputs = client.infer("gate", mixed).outputs
    expected = 0.5 * _silu(inputs["g"]) * mixed["u"].astype(np.float32)
    assert outputs["y"].dtype == np.float32
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5)


def test_a_mapping_may_hold_the_only_input(client: Client) -> None:
    x = _rows(3)
    np.testing.assert_array_equal(client.infer("identity", {"x": x}).output, x, strict=True)


def test_an_array_alone_is_not_enough_for_several_inputs(client: Client) -> None:
    with pytest.raises(InferenceError, match=r"takes 2 inputs \(g, u\): pass a mapping"):
        client.infer("gate", _rows(1))


def test_inputs_that_do_not_fit_each_other_never_reach_the_server(client: Client) -> None:
    with pytest.raises(ValueError, match=r"one shape: g \[2, 3\], u \[3, 2\]"):
        client.infer("gate", {"g": np.ones((2, 3)), "u": np.ones((3, 2))})
    with pytest.raises(ValueError, match="no input"):
        client.infer("gate", {})
    with pytest.raises(TypeError, match="int64 cannot be sent"):
        client.infer("gate", {"g": np.ones((2, 3)), "u": np.ones((2, 3), np.int64)})


@pytest.mark.parametrize("dtype", [">f4", ">f2", ">f8", "<f4"])
@pytest.mark.parametrize("datatype", [None, "FP32", "bf16"])
def test_either_byte_order_is_sent_and_comes_back_native(
    client: Client, dtype: str, datatype: str | None
) -> None:
    plain = (_rows(3) * 8).round() / 4
    swapped = plain.astype(dtype)
    output = client.infer("identity", swapped, datatype=datatype).output
    assert output.dtype.isnative
    assert output.dtype.itemsize == min(swapped.dtype.itemsize, 4)
    np.testing.assert_array_equal(output, plain)


def test_one_string_is_no_list_of_outputs(client: Client) -> None:
    with pytest.raises(TypeError, match=r"such as \['zy'\], not 'zy'"):
        client.infer("fused", _rows(1), outputs="zy")


def test_unknown_model_keeps_status_and_text(client: Client) -> None:
    for call in (
        client.model_ready,
        client.model_metadata,
        lambda name: client.infer(name, _rows(1)),
    ):
        with pytest.raises(InferenceError, match="NOT_FOUND: no model 'absent'") as caught:
            call("absent")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        assert caught.value.details == "no model 'absent'"


def test_deadline_of_the_call(client: Client) -> None:
    start = time.monotonic()
    with pytest.raises(InferenceError) as caught:
        client.infer("slow", _rows(1), layer=0, timeout_s=0.2)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 5


def test_deadline_of_the_client(fake_url: str) -> None:
    with Client(fake_url, timeout_s=0.5) as client, pytest.raises(InferenceError) as caught:
        client.infer("slow", _rows(1), layer=0)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_bad_arguments_never_reach_the_server(client: Client) -> None:
    with pytest.raises(TypeError, match="int32 cannot be sent"):
        client.infer("identity", np.zeros((1, 2), np.int32))
    with pytest.raises(ValueError, match="'INT8' is not one of"):
        client.infer("identity", _rows(1), datatype="INT8")
    with pytest.raises(ValueError, match=r"int8'> is none that travels"):
        client.infer("identity", _rows(1), datatype=np.int8)
    with pytest.raises(TypeError, match="unexpected keyword argument 'layr'"):
        client.infer("identity", _rows(1), layr=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="a scalar has no rows"):
        client.infer("identity", np.ones((), np.float32))


def test_answer_above_the_default_message_limit(client: Client) -> None:
    x = np.arange(3 * 2**20, dtype=np.float32).reshape(3, -1)
    np.testing.assert_array_equal(client.infer("identity", x).output, x, strict=True)


def test_one_client_from_many_threads(client: Client) -> None:
    def call(number: int) -> bool:
        x = np.full((number % 7 + 1, 16), number, np.float32)
        return bool(np.array_equal(client.infer("identity", x).output, x))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))


def test_closed_client_says_so(fake_url: str) -> None:
    client = Client(fake_url)
    client.close()
    client.close()
    with pytest.raises(InferenceError, match="CANCELLED: the client is closed"):
        client.infer("identity", _rows(1))
    with pytest.raises(InferenceError, match="CANCELLED: the client is closed"):
        client.is_live()
    with pytest.raises(InferenceError, match="CANCELLED: the client is closed"):
        client.stream().infer("identity", {"x": _rows(1)})


@pytest.mark.asyncio
async def test_aio_client_answers_the_same(aio_client: AioClient, client: Client) -> None:
    assert await aio_client.is_live()
    assert await aio_client.is_ready()
    assert await aio_client.model_ready("fused")
    assert await aio_client.metadata() == client.metadata()
    assert await aio_client.model_metadata("fused") == client.model_metadata("fused")
    x = _rows(2, 2)
    ours = await aio_client.infer("fused", x, layer=1, datatype="BF16")
    theirs = client.infer("fused", x, layer=1, datatype="BF16")
    np.testing.assert_array_equal(ours.output, theirs.output, strict=True)
    assert ours.cost == theirs.cost
    named = (await aio_client.infer("gate", _gate(2), outputs=["t", "y"])).outputs
    assert list(named) == ["t", "y"]
    for name, output in client.infer("gate", _gate(2)).outputs.items():
        np.testing.assert_array_equal(named[name], output, strict=True)


@pytest.mark.asyncio
async def test_aio_client_answers_many_at_once(aio_client: AioClient) -> None:
    arrays = [np.full((number % 5 + 1, 8), number, np.float16) for number in range(100)]
    results = await asyncio.gather(*(aio_client.infer("identity", x) for x in arrays))
    for x, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.output, x, strict=True)


@pytest.mark.asyncio
async def test_aio_client_errors(aio_client: AioClient) -> None:
    with pytest.raises(InferenceError) as caught:
        await aio_client.infer("absent", _rows(1))
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(InferenceError) as caught:
        await aio_client.infer("slow", _rows(1), timeout_s=0.2)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await aio_client.close()
    with pytest.raises(InferenceError, match="CANCELLED: the client is closed"):
        await aio_client.infer("identity", _rows(1))
    with pytest.raises(InferenceError, match="CANCELLED: the client is closed"):
        await aio_client.stream().infer("identity", {"x": _rows(1)})


@pytest.mark.asyncio
async def test_aio_client_with_nobody_there() -> None:
    async with AioClient("127.0.0.1:1", timeout_s=5) as client:
        assert not await client.is_live()
        assert not await client.is_ready()
        assert not await client.model_ready("fused")


def _response(
    shape: tuple[int, ...], content: bytes, datatype: str = "FP32"
) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(raw_output_contents=[content])
    response.outputs.add(name="output", datatype=datatype, shape=shape)
    return response


def _two_outputs() -> pb.ModelInferResponse:
    response = _response((1, 2), bytes(8))
    response.MergeFrom(_response((1, 2), bytes(4), "BF16"))
    return response


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (pb.ModelInferResponse(), "not one raw content"),
        (_response((2, 1), bytes(8)), r"shape \[2, 1\], not \[1, 2\]"),
        (_response((1, 2), bytes(4)), "4 bytes are not"),
        (_response((1, 2), bytes(8), "INT32"), "'INT32' is not one of"),
        (_two_outputs(), "the answer has both FP32 and 'BF16'"),
    ],
    ids=["empty", "shape", "size", "datatype", "datatypes"],
)
def test_answer_that_breaks_the_protocol(response: pb.ModelInferResponse, text: str) -> None:
    with pytest.raises(InferenceError, match=text) as caught:
        raw_result(response, (1, 2))
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_server_that_does_not_tell_the_cost() -> None:
    assert cost_of(pb.ModelInferResponse()) == Cost()
    assert Cost().share(4) == 0.0


def test_public_names_are_loaded_when_asked_for() -> None:
    script = (
        "import sys, gatefuse\nassert not {'grpc', 'numpy'} & set(sys.modules)\ngatefuse.Client\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert gatefuse.Client is Client
    assert gatefuse.aio.Client is AioClient
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = gatefuse.absent
    assert all(getattr(gatefuse, name) is not None for name in gatefuse.__all__)
    script = "import gatefuse\ngatefuse.remote.replace_mlps\n"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_error_has_the_name_that_users_import() -> None:
    error = InferenceError(grpc.StatusCode.NOT_FOUND, "no model")
    assert f"{type(error).__module__}.{type(error).__qualname__}" == "gatefuse.InferenceError"
    again = copy.deepcopy(error)
    assert (type(again), again.code, again.details) == (InferenceError, error.code, "no model")


def test_client_imports_without_the_servers_packages() -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'ray', 'rich', 'uvloop', 'matplotlib', 'jinja2', 'ml_dtypes'):\n"
        "    sys.modules[name] = None\n"
        "import gatefuse.client.blocking, gatefuse.client.asynchronous, gatefuse.commands.loadtest.command\n"
        "names = set(gatefuse.__all__) - {'remote'}\n"
        "assert all(getattr(gatefuse, name) for name in names)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
