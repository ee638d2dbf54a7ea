"""Requests of several named inputs: right in any order, and every rule broken one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.service.fakes import ANY_WIDTH, MODELS, PAIR, exact_rows

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.requests import answers, codec
from gatefuse.frontend.requests.codec import Cost
from gatefuse.wire import Datatype, encode
from gatefuse_protos import open_inference_pb2 as pb

G, U = exact_rows(0, 3, 5), exact_rows(10, 3, 5)
CONTENTS = {"g": encode(G), "u": encode(U)}


def _request(
    *names: str, raw: list[bytes] | None = None, outputs: tuple[str, ...] = ()
) -> pb.ModelInferRequest:
    """A request of the named inputs, each with its raw content unless others are given."""
    request = pb.ModelInferRequest(model_name="pair")
    for name in names:
        request.inputs.add(name=name, datatype="FP32", shape=G.shape)
    request.raw_input_contents.extend(
        raw if raw is not None else [CONTENTS.get(name, CONTENTS["g"]) for name in names]
    )
    for name in outputs:
        request.outputs.add(name=name)
    return request


def _refused(request: pb.ModelInferRequest) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        codec.decode(request, MODELS)
    return caught.value.reason, str(caught.value)


@pytest.mark.parametrize("order", [("g", "u"), ("u", "g")])
def test_inputs_come_in_any_order(order: tuple[str, str]) -> None:
    decoded = codec.decode(_request(*order), MODELS)
    assert decoded.model == PAIR
    assert (decoded.rows, decoded.columns, decoded.datatype) == (3, 5, Datatype.FP32)
    assert decoded.payloads == (CONTENTS["g"], CONTENTS["u"])
    assert decoded.payload_bytes == 2 * 3 * 5 * 4
    assert decoded.outputs == (0, 1)


@pytest.mark.parametrize("order", [("g", "u"), ("u", "g")])
def test_typed_contents_come_in_any_order(order: tuple[str, str]) -> None:
    request = _request(*order, raw=[])
    for tensor in request.inputs:
        values = {"g": G, "u": U}[tensor.name]
        tensor.contents.fp32_contents.extend(values.ravel().tolist())
    assert codec.decode(request, MODELS).payloads == (CONTENTS["g"], CONTENTS["u"])


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [((), (0, 1)), (("y",), (0,)), (("t",), (1,)), (("t", "y"), (1, 0))],
    ids=str,
)
def test_outputs_are_answered_in_the_order_asked(
    asked: tuple[str, ...], numbers: tuple[int, ...]
) -> None:
    request = codec.decode(_request("u", "g", outputs=asked), MODELS)
    assert request.outputs == numbers
    contents = tuple(encode(np.full((3, 5), number, np.float32)) for number in numbers)
    answer = pb.ModelInferResponse.FromString(answers.encode(request, contents, Cost()))
    assert [output.name for output in answer.outputs] == list(asked or ("y", "t"))
    assert [list(output.shape) for output in answer.outputs] == [[3, 5]] * len(numbers)
    assert tuple(answer.raw_output_contents) == contents


@pytest.mark.parametrize(
    ("request_", "reason", "text"),
    [
        (_request(), "shape", "input 'g', 'u' is missing: the inputs of 'pair' are g, u"),
        (_request("g"), "shape", "input 'u' is missing"),
        (_request("u"), "shape", "input 'g' is missing"),
        (_request("g", "u", "x"), "shape", "'pair' has no input 'x': its inputs are g, u"),
        (_request("g", ""), "shape", "'pair' has no input ''"),
        (_request("g", "g"), "shape", "input 'g' is given twice"),
        (_request("g", "u", "u"), "shape", "input 'u' is given twice"),
        (_request("g", "u", raw=[]), "mismatch", "must have one entry for each input"),
        (_request("g", "u", raw=[CONTENTS["g"]]), "mismatch", "must have one entry for each input"),
        (_request("g", "u", raw=[b""] * 3), "mismatch", "must have one entry for each input"),
        (
            _request("u", "g", raw=[CONTENTS["u"], CONTENTS["g"][:-4]]),
            "size",
            "needs 60 bytes of FP32, 56 were sent for 'g'",
        ),
        (_request("g", "u", outputs=("x",)), "shape", "the outputs of 'pair' are y, t"),
        (_request("g", "u", outputs=("y", "")), "shape", "the outputs of 'pair' are y, t"),
        (_request("g", "u", outputs=("y", "y")), "shape", "an output is asked for twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_rule_is_named(request_: pb.ModelInferRequest, reason: str, text: str) -> None:
    found_reason, found_text = _refused(request_)
    assert found_reason == reason
    assert text in found_text


@pytest.mark.parametrize(
    ("change", "reason", "text"),
    [
        ({"shape": [2, 5]}, "shape", "one shape: 'g' has [3, 5], 'u' has [2, 5]"),
        ({"shape": [5, 3]}, "shape", "one shape: 'g' has [3, 5], 'u' has [5, 3]"),
        ({"shape": [15]}, "shape", "the shape of input 'u' must be [rows, columns]"),
        ({"shape": []}, "shape", "the shape of input 'u' must be [rows, columns]"),
        ({"shape": [3, 5, *[1] * 3000]}, "shape", "the shape of input 'u' must be [rows, columns]"),
        ({"datatype": "BF16"}, "dtype", "one datatype: 'g' is FP32, 'u' is 'BF16'"),
        ({"datatype": "INT8"}, "dtype", "one datatype: 'g' is FP32, 'u' is 'INT8'"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_each_other(change: dict[str, Any], reason: str, text: str) -> None:
    request = _request("g", "u")
    del request.inputs[1]
    fields = {"name": "u", "datatype": "FP32", "shape": G.shape, **change}
    request.inputs.add(**fields)
    found_reason, found_text = _refused(request)
    assert found_reason == reason
    assert text in found_text


def test_raw_and_typed_contents_do_not_mix() -> None:
    request = _request("g", "u")
    request.inputs[0].contents.fp32_contents.extend(G.ravel().tolist())
    assert _refused(request)[0] == "mismatch"
    request = _request("g", "u", raw=[])
    request.inputs[1].contents.fp32_contents.extend(U.ravel().tolist())
    assert _refused(request)[0] == "mismatch"


def test_a_width_beyond_the_widest() -> None:
    request = _request("g", "u", raw=[b"", b""])
    for tensor in request.inputs:
        tensor.shape[1] = ANY_WIDTH.max_columns + 1
    assert _refused(request) == ("shape", "'pair' takes 1 to 16 columns")


def test_a_long_name_is_cut_in_the_text() -> None:
    assert len(_refused(_request("g", "n" * 10_000))[1]) < 200
