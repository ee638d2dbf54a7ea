"""A request's parameters: which layer, and how it waits."""

from __future__ import annotations

import pytest
from tests.service.fakes import DEEP, MLP

from gatefuse.errors import InvalidRequest, NotFound
from gatefuse.frontend.requests.parameters import read_layer, read_waiting
from gatefuse_protos import open_inference_pb2 as pb

Value = pb.InferParameter


def _request(**parameters: pb.InferParameter) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="ffn", parameters=parameters)


@pytest.mark.parametrize("layer", [0, 2, 5])
def test_a_layer_that_is_served(layer: int) -> None:
    assert read_layer(_request(layer=Value(int64_param=layer)), DEEP) == layer


def test_the_only_layer_need_not_be_named() -> None:
    assert read_layer(_request(), MLP) == 0


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({}, InvalidRequest),
        ({"layer": Value(string_param="2")}, InvalidRequest),
        ({"layer": Value(int64_param=1)}, NotFound),
    ],
    ids=["none", "text", "not_served"],
)
def test_a_layer_that_is_not(parameters: dict[str, Value], error: type[InvalidRequest]) -> None:
    with pytest.raises(error) as caught:
        read_layer(_request(**parameters), DEEP)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("parameters", "waiting"),
    [
        ({}, (0, 0)),
        ({"priority": Value(uint64_param=2**64 - 1)}, (2**64 - 1, 0)),
        ({"priority": Value(int64_param=3), "timeout": Value(int64_param=1500)}, (3, 1500)),
        ({"timeout": Value(uint64_param=7)}, (0, 7)),
        ({"layer": Value(int64_param=1), "anything": Value(string_param="x")}, (0, 0)),
        ({"triton_enable_empty_final_response": Value(bool_param=True)}, (0, 0)),
    ],
    ids=["none", "largest", "both", "unsigned", "others", "empty_final"],
)
def test_how_it_waits(parameters: dict[str, Value], waiting: tuple[int, int]) -> None:
    assert read_waiting(_request(**parameters)) == waiting


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"priority": Value(int64_param=-1)}, "'priority' must not be negative"),
        ({"timeout": Value(int64_param=-(2**63))}, "'timeout' must not be negative"),
        ({"timeout": Value(double_param=1.0)}, "'timeout' must be an int64_param"),
        ({"priority": Value()}, "'priority' must be an int64_param"),
        ({"triton_final_response": Value(bool_param=True)}, "begin with 'triton_' are reserved"),
    ],
    ids=["negative", "most_negative", "float", "nothing", "reserved"],
)
def test_what_is_no_waiting(parameters: dict[str, Value], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_waiting(_request(**parameters))
