"""Who waits for what on a stream."""

from __future__ import annotations

import grpc
import pytest

from gatefuse.client.messages import InferenceError
from gatefuse.client.transport.pending import Pending, answer_of
from gatefuse.frontend.requests.answers import encode_streamed_error
from gatefuse_protos import open_inference_pb2 as pb


def test_answers_find_their_waiters_in_any_order_and_once() -> None:
    pending: Pending[str] = Pending()
    ids = [pending.add(name, pb.ModelInferRequest()) for name in "abc"]
    assert len(set(ids)) == 3
    assert [pending.take(ids[i]) for i in (2, 0, 0, 1)] == ["c", "a", None, "b"]
    assert pending.take("of nobody") is None
    assert pending.waiters() == []


def test_the_end_tells_those_who_still_wait_and_takes_nobody_more() -> None:
    pending: Pending[str] = Pending()
    first, _ = (pending.add(name, pb.ModelInferRequest()) for name in "ab")
    pending.take(first)
    ended = pending.ended
    assert pending.end() == ["b"]
    assert (ended, pending.ended) == (False, True)
    assert pending.end() == []
    with pytest.raises(AssertionError):
        pending.add("c", pb.ModelInferRequest())


def test_error_on_a_stream_has_the_code_that_the_server_tells() -> None:
    message = pb.ModelStreamInferResponse(error_message="no such model")
    untold = answer_of(message)
    assert isinstance(untold, InferenceError)
    assert (untold.code, untold.details) == (grpc.StatusCode.UNKNOWN, "no such model")
    message.infer_response.parameters["status"].string_param = "NOT_FOUND"
    told = answer_of(message)
    assert isinstance(told, InferenceError)
    assert told.code is grpc.StatusCode.NOT_FOUND
    message.infer_response.parameters["status"].string_param = "no code"
    strange = answer_of(message)
    assert isinstance(strange, InferenceError)
    assert strange.code is grpc.StatusCode.UNKNOWN


def test_error_of_our_own_server() -> None:
    sent = encode_streamed_error("7", "RESOURCE_EXHAUSTED", "the queue is full")
    error = answer_of(pb.ModelStreamInferResponse.FromString(sent))
    assert isinstance(error, InferenceError)
    assert str(error) == "RESOURCE_EXHAUSTED: the queue is full"


def test_answer_on_a_stream_is_the_response() -> None:
    message = pb.ModelStreamInferResponse()
    message.infer_response.id = "7"
    assert answer_of(message) == message.infer_response


def test_requests_are_sent_in_order_and_once_unless_their_waiters_are_gone() -> None:
    pending: Pending[str] = Pending()
    ids = [pending.add(name, pb.ModelInferRequest(model_name=name)) for name in "abcdef"]
    first = pending.next_unsent()
    assert first == pb.ModelInferRequest(model_name="a", id=ids[0])
    pending.take(ids[1])
    pending.take_all(lambda name: name in "ad")
    assert [pending.next_unsent() for _ in range(2)] == [
        pb.ModelInferRequest(model_name=name, id=ids["abcdef".index(name)]) for name in "ce"
    ]
    pending.end()
    assert pending.next_unsent() is None
