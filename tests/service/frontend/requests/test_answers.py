"""The size of an answer, which is known before anything is computed."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from tests.service.fakes import PAIR, infer_request

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.requests import answers
from gatefuse.frontend.requests.codec import MAX_ID_LENGTH, Cost
from gatefuse.frontend.shared_memory import RegionSlice
from gatefuse.frontend.shared_memory.region import SystemRegion
from gatefuse.wire import Datatype, encode
from gatefuse_protos import open_inference_pb2 as pb

DEAREST = Cost(9e12, 9e12, *[2**63 - 1] * 3)


@pytest.mark.parametrize("datatype", Datatype)
@pytest.mark.parametrize("request_id", ["", "ü" * 256])
def test_the_size_of_an_answer_is_known_before_it_is_computed(
    datatype: Datatype, request_id: str
) -> None:
    x = np.zeros((2, 5000, 4), np.float32)
    request = infer_request(PAIR, x, datatype)._replace(request_id=request_id)
    outputs = tuple(encode(each, datatype) for each in x)
    size_bytes = len(answers.encode(request, outputs, DEAREST))
    answers.check_answer(request, size_bytes)
    with pytest.raises(InvalidRequest, match=f"takes {size_bytes} bytes") as caught:
        answers.check_answer(request, size_bytes - 1)
    assert caught.value.reason == "size"
    answers.check_answer(request._replace(outputs=(1,)), size_bytes - 1)


@pytest.mark.parametrize(("outputs", "left_out"), [((0, 1), 0), ((1,), 1)])
def test_an_answer_tells_how_many_outputs_it_has_not(
    outputs: tuple[int, ...], left_out: int
) -> None:
    request = infer_request(PAIR, np.zeros((2, 1, 1), np.float32))._replace(outputs=outputs)
    answer = pb.ModelInferResponse.FromString(
        answers.encode(request, (b"",) * len(outputs), DEAREST)
    )
    assert answer.parameters["outputs_left_out"].int64_param == left_out


def test_no_answers_head_is_longer_than_the_bound() -> None:
    names = tuple("n" * 249 + str(number) for number in range(16))
    model = replace(PAIR, name="m" * 63, outputs=names)
    request = infer_request(PAIR, np.zeros((2, 1, 1), np.float32))._replace(
        model=model, outputs=tuple(range(16)), request_id="ü" * MAX_ID_LENGTH
    )
    assert len(answers.encode(request, (b"",) * 16, DEAREST)) < answers.MOST_HEAD_BYTES


@pytest.mark.parametrize("rows", [1, 4095, 5000, 300_000])
def test_the_size_of_an_answer_on_a_stream(rows: int) -> None:
    x = np.zeros((2, rows, 4), np.float32)
    request = infer_request(PAIR, x, Datatype.FP32)
    outputs = tuple(encode(each, Datatype.FP32) for each in x)
    size_bytes = len(answers.encode_streamed(request, outputs, DEAREST))
    frame_bytes = answers.STREAM_FRAME_BYTES
    with pytest.raises(InvalidRequest, match="the answer takes"):
        answers.check_answer(request, size_bytes - 1, frame_bytes)
    # A frame's length takes one byte at least, and is reckoned at its most.
    answers.check_answer(request, size_bytes + 4, frame_bytes)


def test_an_output_in_shared_memory_takes_no_bytes_of_the_answer() -> None:
    x = np.zeros((2, 5000, 4), np.float32)
    region = RegionSlice(
        SystemRegion("r", os.open(os.devnull, os.O_RDWR), 0, x.nbytes), 0, x[0].nbytes
    )
    request = infer_request(PAIR, x, Datatype.FP32)
    one = request._replace(targets=(region, None))
    size_bytes = len(answers.encode(one, (b"", x[1].tobytes()), DEAREST))
    answers.check_answer(one, size_bytes)
    with pytest.raises(InvalidRequest, match=f"takes {size_bytes} bytes"):
        answers.check_answer(one, size_bytes - 1)
    answers.check_answer(request._replace(targets=(region, region)), 2**16)
