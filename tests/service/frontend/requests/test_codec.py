"""Every rule of a request's content, broken one at a time, and the answer's form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.fakes import (
    ANY_WIDTH,
    COLUMNS,
    DEEP,
    MLP,
    MODELS,
    PAIR,
    exact_rows,
    infer_request,
)

from gatefuse.errors import InvalidRequest, NotFound, Unsupported
from gatefuse.frontend.requests import answers, codec
from gatefuse.frontend.requests.codec import Cost
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype, encode
from gatefuse_protos import open_inference_pb2 as pb

X = exact_rows(0, 2)
RAW = X.tobytes()


def _request(**changes: Any) -> pb.ModelInferRequest:
    """A right request for two rows, with some of its parts changed; None leaves one out."""
    parts: dict[str, Any] = {
        "model": "ffn",
        "version": "",
        "input": "hidden_states",
        "datatype": "FP32",
        "shape": [2, COLUMNS],
        "raw": [RAW],
        "outputs": (),
        "typed": None,
        "layer": None,
        **changes,
    }
    request = pb.ModelInferRequest(
        model_name=parts["model"],
        model_version=parts["version"],
        id="r-1",
        raw_input_contents=parts["raw"],
    )
    tensor = request.inputs.add(
        name=parts["input"], datatype=parts["datatype"], shape=parts["shape"]
    )
    if parts["typed"] is not None:
        tensor.contents.CopyFrom(pb.InferTensorContents(**parts["typed"]))
    for name in parts["outputs"]:
        request.outputs.add(name=name)
    if parts["layer"] is not None:
        request.parameters["layer"].CopyFrom(pb.InferParameter(**parts["layer"]))
    return request


def _refused(request: pb.ModelInferRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        codec.decode(request, MODELS)
    return caught.value


@pytest.mark.parametrize("datatype", Datatype)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_right_request(datatype: Datatype, rows: int) -> None:
    x = exact_rows(5, rows)
    raw = encode(x, datatype)
    request = _request(datatype=datatype.value, shape=x.shape, raw=[raw], version="1")
    decoded = codec.decode(request, MODELS)
    assert decoded.payloads == (raw,)
    assert (decoded.model, decoded.layer, decoded.datatype) == (MLP, 0, datatype)
    assert (decoded.rows, decoded.columns, decoded.request_id) == (rows, COLUMNS, "r-1")


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"shape": []}, "shape", "[rows, columns]"),
        ({"shape": [2 * COLUMNS]}, "shape", "[rows, columns]"),
        ({"shape": [1, 2, COLUMNS]}, "shape", "[rows, columns]"),
        ({"shape": [0, COLUMNS], "raw": [b""]}, "shape", "at least one row"),
        ({"shape": [-2, COLUMNS]}, "shape", "at least one row"),
        ({"shape": [-2, -COLUMNS]}, "shape", "at least one row"),
        (
            {"shape": [2**31, COLUMNS]},
            "size",
            "2147483648 rows: no request can have more than 2147483647",
        ),
        ({"shape": [2**63 - 1, COLUMNS]}, "size", "more than 2147483647"),
        ({"shape": [2**31 - 1, COLUMNS]}, "size", f"needs {(2**31 - 1) * COLUMNS * 4} bytes"),
        ({"shape": [3, 2]}, "shape", "rows of 3 columns"),
        ({"shape": [2, 0]}, "shape", "rows of 3 columns"),
        ({"shape": [2, 2**63 - 1]}, "shape", "rows of 3 columns"),
        ({"shape": [3, COLUMNS]}, "size", "needs 36 bytes of FP32, 24 were sent"),
        ({"raw": [RAW[:-1]]}, "size", "needs 24 bytes of FP32, 23 were sent"),
        ({"raw": [RAW + b"\0"]}, "size", "needs 24 bytes of FP32, 25 were sent"),
        ({"raw": [b""]}, "size", "needs 24 bytes of FP32, 0 were sent"),
        ({"datatype": "BF16"}, "size", "needs 12 bytes of BF16, 24 were sent"),
        ({"raw": []}, "mismatch", "must have one entry"),
        ({"raw": [RAW, RAW]}, "mismatch", "must have one entry"),
        ({"raw": [RAW[:12], RAW[12:]]}, "mismatch", "must have one entry"),
        ({"typed": {"fp32_contents": X.ravel()}}, "mismatch", "not both"),
        ({"typed": {}}, "mismatch", "not both"),
        ({"raw": [], "typed": {"fp32_contents": [1.0] * 5}}, "size", "needs 6 values, 5 were"),
        ({"raw": [], "typed": {"fp32_contents": [1.0] * 7}}, "size", "needs 6 values, 7 were"),
        ({"raw": [], "typed": {}}, "size", "needs 6 values, 0 were"),
        ({"raw": [], "typed": {"fp64_contents": [1.0] * 6}}, "mismatch", "in fp32_contents"),
        ({"raw": [], "typed": {"int_contents": [1] * 6}}, "mismatch", "in fp32_contents"),
        (
            {"raw": [], "typed": {"fp32_contents": [1.0] * 6, "bytes_contents": [b"1"]}},
            "mismatch",
            "in fp32_contents",
        ),
        (
            {"raw": [], "datatype": "BF16", "typed": {"fp32_contents": [1.0] * 6}},
            "dtype",
            "BF16 travels in raw_input_contents only",
        ),
        ({"datatype": "FP64"}, "dtype", "'FP64' is not one of FP32, FP16, BF16"),
        ({"datatype": "fp32"}, "dtype", "'fp32' is not one of"),
        ({"datatype": ""}, "dtype", "'' is not one of"),
        ({"input": "x"}, "shape", "named 'hidden_states'"),
        ({"input": ""}, "shape", "named 'hidden_states'"),
        ({"outputs": ["y"]}, "shape", "only output of 'ffn' is 'output'"),
        ({"outputs": ["output", "output"]}, "shape", "an output is asked for twice"),
        ({"model": ""}, "model", "model_name must match"),
        ({"model": "ffn\n"}, "model", "model_name must match"),
        ({"model": "a" * 257}, "model", "model_name must match"),
        ({"model": "../ffn"}, "model", "model_name must match"),
        ({"version": "latest"}, "model", "model_version must be"),
        ({"version": "-1"}, "model", "model_version must be"),
        ({"version": "１"}, "model", "model_version must be"),
        ({"version": "1" * 11}, "model", "model_version must be"),
        ({"layer": {"string_param": "0"}}, "model", "must be an int64_param"),
        ({"layer": {"uint64_param": 0}}, "model", "must be an int64_param"),
        ({"layer": {"bool_param": False}}, "model", "must be an int64_param"),
        ({"layer": {}}, "model", "must be an int64_param"),
        ({"model": "deep"}, "model", "'deep' has 3 layers"),
    ],
    ids=str,
)
def test_a_broken_rule_is_named(changes: dict[str, Any], reason: str, text: str) -> None:
    error = _refused(_request(**changes))
    assert type(error) is InvalidRequest
    assert error.reason == reason
    assert text in str(error)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model": "other"}, "no model is named 'other'"),
        ({"model": "Ffn"}, "no model is named 'Ffn': names match [a-z0-9]"),
        ({"model": "my_model"}, "no model is named 'my_model': names match [a-z0-9]"),
        ({"model": "a" * 64}, "names match [a-z0-9]"),
        ({"version": "2"}, "model 'ffn' has no version 2: its only version is 1"),
        ({"layer": {"int64_param": 1}}, "model 'ffn' does not serve layer 1, but 0"),
        ({"layer": {"int64_param": -1}}, "model 'ffn' does not serve layer -1, but 0"),
        (
            {"model": "deep", "layer": {"int64_param": 1}},
            "'deep' does not serve layer 1, but 0, 2, 5",
        ),
        (
            {"model": "deep", "layer": {"int64_param": 2**63 - 1}},
            "not serve layer 9223372036854775807",
        ),
    ],
    ids=str,
)
def test_what_does_not_exist_is_not_found(changes: dict[str, Any], text: str) -> None:
    error = _refused(_request(**changes))
    assert type(error) is NotFound
    assert error.reason == "model"
    assert text in str(error)


@pytest.mark.parametrize("count", [0, 2])
def test_exactly_one_input(count: int) -> None:
    request = _request()
    tensor = request.inputs.pop()
    request.inputs.extend([tensor] * count)
    assert "exactly one input is expected: 'hidden_states'" in str(_refused(request))


def test_an_id_has_a_limit() -> None:
    request = _request()
    request.id = "i" * codec.MAX_ID_LENGTH
    assert codec.decode(request, MODELS).request_id == request.id
    request.id += "i"
    assert _refused(request).reason == "size"


@pytest.mark.parametrize("layer", DEEP.layers)
def test_a_layer_is_chosen_by_its_number(layer: int) -> None:
    request = _request(model="deep", layer={"int64_param": layer})
    assert codec.decode(request, MODELS).layer == layer


def test_the_only_layer_may_be_named_or_not() -> None:
    assert codec.decode(_request(), MODELS).layer == 0
    assert codec.decode(_request(layer={"int64_param": 0}), MODELS).layer == 0


@pytest.mark.parametrize("columns", [1, 5, ANY_WIDTH.max_columns])
def test_an_elementwise_model_takes_any_width(columns: int) -> None:
    request = _request(
        model="scale", input="x", shape=[2, columns], raw=[bytes(2 * columns * 4)], outputs=["y"]
    )
    assert codec.decode(request, MODELS).columns == columns


@pytest.mark.parametrize("columns", [0, -1, ANY_WIDTH.max_columns + 1, 2**63 - 1])
def test_an_elementwise_model_has_a_widest_row(columns: int) -> None:
    error = _refused(_request(model="scale", input="x", shape=[1, columns]))
    assert (error.reason, str(error)) == ("shape", "'scale' takes 1 to 16 columns")


def test_typed_contents_are_the_same_rows() -> None:
    values = [0.1, -0.0, float("inf"), float("nan"), 1e-45, 3.4e38]
    request = _request(raw=[], typed={"fp32_contents": values})
    assert codec.decode(request, MODELS).payloads[0] == np.array(values, "<f4").tobytes()


def test_the_answer() -> None:
    request = infer_request(DEEP, X, Datatype.BF16, layer=2)
    output = encode(2 * X, Datatype.BF16)
    response = pb.ModelInferResponse.FromString(
        answers.encode(request, (output,), Cost(0.0000126, 0.002, 9, 4, 2**40))
    )
    expected = pb.ModelInferResponse(
        model_name="deep", model_version="1", raw_output_contents=[output]
    )
    expected.outputs.add(name="output", datatype="BF16", shape=[2, COLUMNS])
    for name, value in {
        "queue_us": 13,
        "compute_us": 2000,
        "batch_rows": 9,
        "kernel_launches": 4,
        "bytes_moved": 2**40,
    }.items():
        expected.parameters[name].int64_param = value
    expected.parameters["backend"].string_param = "fused"
    assert response == expected


# Lengths of one, two, three and four bytes on the wire, and their neighbours.
@pytest.mark.parametrize("rows", [1, 31, 32, 4095, 4096, 524_288])
@pytest.mark.parametrize("request_id", ["", "r-1", "ü" * 128])
def test_an_answer_of_any_size_is_parsed(rows: int, request_id: str) -> None:
    x = np.zeros((rows, 1), np.float32)
    request = infer_request(ANY_WIDTH, x)._replace(request_id=request_id)
    answer = pb.ModelInferResponse.FromString(answers.encode(request, (x.tobytes(),), Cost()))
    assert list(answer.outputs[0].shape) == [rows, 1]
    assert answer.raw_output_contents == [x.tobytes()]
    assert answer.id == request_id
    assert answer.parameters["batch_rows"].int64_param == 0


def test_metadata_of_an_mlp() -> None:
    metadata = codec.metadata(DEEP)
    expected = pb.ModelMetadataResponse(name="deep", versions=["1"], platform="gatefuse")
    expected.inputs.add(name="hidden_states", datatype="FP16", shape=[-1, COLUMNS])
    expected.outputs.add(name="output", datatype="FP16", shape=[-1, COLUMNS])
    expected.properties.update(
        {
            "kind": "swiglu",
            "backend": "fused",
            "description": "fused: a fake",
            "dtype": "fp16",
            "layers": "0,2,5",
            "max_batch_rows": "8",
            "accepted_datatypes": "FP32,FP16,BF16",
            "intermediate": "8",
        }
    )
    assert metadata == expected


def test_metadata_of_an_elementwise_model() -> None:
    metadata = codec.metadata(ANY_WIDTH)
    assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("x", [-1, -1])
    assert (metadata.outputs[0].name, list(metadata.outputs[0].shape)) == ("y", [-1, -1])
    assert "intermediate" not in metadata.properties
    assert metadata.properties["expression"] == "x * two"
    assert json.loads(metadata.properties["constants"]) == {"two": 2.0}
    assert metadata.properties["max_columns"] == "16"


@pytest.mark.parametrize("model", [MLP, PAIR], ids=["one input", "two inputs"])
@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("classification", ""),
        ("shared_memory_name", ""),
        ("shared_memory_byte_size", " without 'shared_memory_region'"),
        ("shared_memory_offset", " without 'shared_memory_region'"),
    ],
)
@pytest.mark.parametrize("what", ["input", "output"])
def test_what_this_server_cannot_do_is_not_ignored(
    model: ServedModel, name: str, alone: str, what: str
) -> None:
    request, tensor = _last_tensor(model, what)
    tensor.parameters["harmless"].int64_param = 3
    codec.decode(request, MODELS)
    tensor.parameters[name].int64_param = 3
    error = _refused(request)
    assert error.reason == "mismatch"
    assert str(error) == f"the {what}'s parameter '{name}' is not supported by this server{alone}"


@pytest.mark.parametrize("model", [MLP, PAIR], ids=["one input", "two inputs"])
@pytest.mark.parametrize("what", ["input", "output"])
def test_shared_memory_where_it_is_off(model: ServedModel, what: str) -> None:
    request, tensor = _last_tensor(model, what)
    tensor.parameters["shared_memory_region"].string_param = "rows"
    tensor.parameters["shared_memory_byte_size"].int64_param = len(RAW)
    if what == "input":
        request.raw_input_contents.pop()
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        codec.decode(request, MODELS)
    tensor.parameters["classification"].int64_param = 3
    assert "'classification' is not supported" in str(_refused(request))


def _last_tensor(model: ServedModel, what: str) -> tuple[pb.ModelInferRequest, Any]:
    """A right request that names all inputs and outputs; and the last of either."""
    request = pb.ModelInferRequest(
        model_name=model.name, raw_input_contents=[RAW] * len(model.inputs)
    )
    for each in model.inputs:
        request.inputs.add(name=each, datatype="FP32", shape=[2, COLUMNS])
    for each in model.outputs:
        request.outputs.add(name=each)
    return request, request.inputs[-1] if what == "input" else request.outputs[-1]


def test_metadata_lists_every_input_and_output() -> None:
    fixed = replace(PAIR, columns=4, constants=(("two", 2.0), ("bias", None)))
    metadata = codec.metadata(fixed)
    assert [(each.name, list(each.shape)) for each in metadata.inputs] == [
        ("g", [-1, 4]),
        ("u", [-1, 4]),
    ]
    assert [(each.name, each.datatype) for each in metadata.outputs] == [
        ("y", "FP32"),
        ("t", "FP32"),
    ]
    assert json.loads(metadata.properties["constants"]) == {"two": 2.0, "bias": None}


names = st.sampled_from(
    [
        "ffn",
        "deep",
        "scale",
        "pair",
        "x",
        "y",
        "g",
        "u",
        "t",
        "hidden_states",
        "output",
        "",
        "layer",
    ]
)
numbers = st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1))
parameters = st.one_of(
    st.builds(pb.InferParameter, int64_param=numbers),
    st.builds(pb.InferParameter, string_param=st.text(max_size=3)),
    st.builds(pb.InferParameter),
)
contents = st.builds(
    pb.InferTensorContents,
    fp32_contents=st.lists(st.floats(width=32), max_size=8),
    int_contents=st.lists(st.integers(-5, 5), max_size=1),
)
tensors = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=names,
    datatype=st.sampled_from(["FP32", "FP16", "BF16", "FP64", ""]),
    shape=st.lists(numbers, min_size=1, max_size=3),
    contents=st.one_of(st.none(), contents),
)
requests = st.builds(
    pb.ModelInferRequest,
    model_name=names,
    model_version=st.sampled_from(["", "1", "2", "x", "01"]),
    parameters=st.dictionaries(names, parameters, max_size=2),
    inputs=st.lists(tensors, max_size=3),
    outputs=st.lists(
        st.builds(pb.ModelInferRequest.InferRequestedOutputTensor, name=names), max_size=2
    ),
    raw_input_contents=st.lists(st.binary(max_size=40), max_size=3),
)


def _answer_or_refusal(request: pb.ModelInferRequest) -> None:
    """Whatever is sent, it is refused by a rule or decoded to exactly the rows that it shows."""
    try:
        decoded = codec.decode(request, MODELS)
    except InvalidRequest:
        return
    shapes = {tuple(tensor.shape) for tensor in request.inputs}
    assert shapes == {(decoded.rows, decoded.columns)}
    assert decoded.layer in decoded.model.layers
    sent: dict[str, bytes] = {}
    for number, tensor in enumerate(request.inputs):
        typed = np.array(tensor.contents.fp32_contents, "<f4").tobytes()
        sent[tensor.name] = (
            request.raw_input_contents[number] if request.raw_input_contents else typed
        )
    assert [sent.pop(name) for name in decoded.model.inputs] == list(decoded.payloads)
    assert not sent
    size = decoded.rows * decoded.columns * decoded.datatype.itemsize
    assert {len(payload) for payload in decoded.payloads} == {size}
    asked = [output.name for output in request.outputs] or list(decoded.model.outputs)
    assert [decoded.model.outputs[number] for number in decoded.outputs] == asked


@settings(max_examples=300, deadline=None)
@given(requests)
def test_any_message_is_decoded_right_or_refused(request: pb.ModelInferRequest) -> None:
    _answer_or_refusal(request)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutated_message_is_decoded_right_or_refused(data: st.DataObject) -> None:
    typed = data.draw(st.booleans())
    whole = _request(raw=[], typed={"fp32_contents": X.ravel()}) if typed else _request()
    packed = bytearray(whole.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(packed) - 1))
        packed[position] = data.draw(st.integers(0, 255))
    try:
        request = pb.ModelInferRequest.FromString(bytes(packed))
    except DecodeError:
        return
    _answer_or_refusal(request)
