"""Inference on a stream, through a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.service.bed import TestBed
from tests.service.fakes import exact_rows

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.frontend.rpc import stream_requests
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

Code = grpc.StatusCode
EMPTY = "Dispatcher(requests=0, Batcher(rows={}, draining=False))"


def opener(bed: TestBed) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return bed.channel.stream_stream(method("ModelStreamInfer"), None, None)


class Stream:
    """One stream of a client; a request's id is the number of its first row."""

    def __init__(self, bed: TestBed, **metadata: str) -> None:
        self.call = opener(bed)(metadata=tuple(metadata.items()), timeout=20)

    async def ask(self, first: int, rows: int = 1, **parameters: int | bool) -> None:
        """Sends rows of the MLP."""
        await self.call.write(question(first, rows, **parameters).SerializeToString())

    async def answer(self) -> pb.ModelStreamInferResponse:
        """The next answer."""
        message = await asyncio.wait_for(self.call.read(), 10)
        assert isinstance(message, bytes), await self.call.code()
        return pb.ModelStreamInferResponse.FromString(message)

    async def rest(self) -> list[pb.ModelStreamInferResponse]:
        """Every further answer; the stream must end by itself."""
        messages = []
        while (message := await asyncio.wait_for(self.call.read(), 10)) is not grpc.aio.EOF:
            assert isinstance(message, bytes)
            messages.append(pb.ModelStreamInferResponse.FromString(message))
        return messages


def question(first: int, rows: int = 1, **parameters: int | bool) -> pb.ModelInferRequest:
    x = exact_rows(first, rows)
    message = infer_request("ffn", {"hidden_states": Rows(x.tobytes(), x.shape, Datatype.FP32)})
    message.id = str(first)
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(message.parameters[name], kind, value)
    return message


def right(answer: pb.ModelStreamInferResponse, rows: int = 1) -> int:
    """Checks an answer's rows; returns which request it is for."""
    response = answer.infer_response
    assert answer.error_message == ""
    first = int(response.id)
    (content,) = response.raw_output_contents
    wanted = 2 * exact_rows(first, rows)
    assert np.array_equal(np.frombuffer(content, "<f4").reshape(rows, 3), wanted)
    return first


@asynccontextmanager
async def ended(
    bed: TestBed, stream: Stream, code: grpc.StatusCode = Code.OK
) -> AsyncIterator[None]:
    """The stream ends with `code` after the block, and nothing is left of it."""
    yield
    assert await asyncio.wait_for(stream.call.code(), 10) is code
    for _ in range(100):
        if repr(bed.dispatcher) == EMPTY:
            break
        await asyncio.sleep(0.02)
    assert repr(bed.dispatcher) == EMPTY
    assert not [task for task in asyncio.all_tasks() if "coro=<_read()" in repr(task)]


@pytest.mark.asyncio
async def test_many_requests_are_answered_on_one_stream(bed: TestBed) -> None:
    bed.worker()
    stream = Stream(bed)
    async with ended(bed, stream):
        for first in range(0, 300, 3):
            await stream.ask(first, 3)
        await stream.call.done_writing()
        answers = await stream.rest()
    assert sorted(right(answer, 3) for answer in answers) == list(range(0, 300, 3))


@pytest.mark.asyncio
async def test_an_answer_does_not_wait_for_an_earlier_request(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    worker._slots = 2
    stream = Stream(bed)
    async with ended(bed, stream):
        await stream.ask(0, 1)
        await _until(lambda: len(worker.waiting) == 1)
        await stream.ask(8, 1)
        await _until(lambda: len(worker.waiting) == 2)
        worker.finish(position=1)
        assert right(await stream.answer()) == 8
        worker.finish()
        assert right(await stream.answer()) == 0
        await stream.call.done_writing()


@pytest.mark.asyncio
async def test_an_error_is_a_message_and_the_stream_stays_open(bed: TestBed) -> None:
    bed.worker()
    stream = Stream(bed)
    async with ended(bed, stream):
        wrong = question(7)
        wrong.inputs[0].shape[0] = 9
        await stream.call.write(wrong.SerializeToString())
        answer = await stream.answer()
        assert "the shape needs" in answer.error_message
        assert answer.infer_response.id == "7"
        assert answer.infer_response.parameters["status"].string_param == "INVALID_ARGUMENT"
        assert not answer.infer_response.raw_output_contents
        unknown = question(8)
        unknown.model_name = "nobody"
        await stream.call.write(unknown.SerializeToString())
        answer = await stream.answer()
        assert answer.error_message == "no model is named 'nobody'"
        assert answer.infer_response.parameters["status"].string_param == "NOT_FOUND"
        await stream.ask(9)
        assert right(await stream.answer()) == 9
        await stream.call.done_writing()


@pytest.mark.asyncio
async def test_what_is_no_request_has_no_id(bed: TestBed) -> None:
    bed.worker()
    stream = Stream(bed)
    async with ended(bed, stream):
        await stream.call.write(b"\xff\xff\xff")
        answer = await stream.answer()
        assert answer.error_message == "the request is no message of this method"
        assert answer.infer_response.id == ""
        await stream.call.done_writing()


@pytest.mark.asyncio
async def test_a_client_may_want_a_status_instead(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    stream = Stream(bed, triton_grpc_error="true")
    async with ended(bed, stream, Code.NOT_FOUND):
        await stream.ask(0)
        await _until(lambda: len(worker.waiting) == 1)
        worker.finish()
        assert right(await stream.answer()) == 0
        await stream.ask(1)
        unknown = question(2)
        unknown.model_name = "nobody"
        await stream.call.write(unknown.SerializeToString())
        assert await stream.call.code() is Code.NOT_FOUND
        assert await stream.call.details() == "no model is named 'nobody'"


@pytest.mark.asyncio
async def test_every_answer_is_the_last_of_its_request(bed: TestBed) -> None:
    bed.worker()
    stream = Stream(bed)
    async with ended(bed, stream):
        await stream.ask(0, triton_enable_empty_final_response=True)
        await stream.ask(1)
        await stream.ask(2, triton_other=True)
        await stream.call.done_writing()
        answers = await stream.rest()
    for answer in answers:
        assert answer.infer_response.parameters["triton_final_response"].bool_param
    errors = {answer.infer_response.id: answer.error_message for answer in answers}
    assert errors == {
        "0": "", "1": "", "2": "parameters that begin with 'triton_' are reserved",
    }  # fmt: skip


@pytest.mark.asyncio
async def test_a_client_that_leaves_takes_its_requests_with_it(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    stream = Stream(bed)
    async with ended(bed, stream, Code.CANCELLED):
        for first in range(20):
            await stream.ask(first, 2)
        await _until(lambda: "requests=20" in repr(bed.dispatcher))
        stream.call.cancel()
    worker.finish()
    sums = bed.dispatcher.statistics.sums("ffn")
    assert (sums.answered, sums.failed) == (0, 20)
    assert len(worker.sent) == 1


@pytest.mark.asyncio
async def test_a_deadline_holds_for_what_is_on_the_stream(bed: TestBed) -> None:
    bed.worker(eager=False)
    call = opener(bed)(timeout=0.3)
    await call.write(question(0).SerializeToString())
    await call.write(question(1).SerializeToString())
    assert await asyncio.wait_for(call.code(), 10) is Code.DEADLINE_EXCEEDED
    await _until(lambda: repr(bed.dispatcher) == EMPTY)


@pytest.mark.asyncio
async def test_a_stream_that_is_full_is_not_read(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_requests, "MAX_REQUESTS", 4)
    worker = bed.worker(eager=False)
    stream = Stream(bed)
    async with ended(bed, stream):
        for first in range(10):
            await stream.ask(first)
        await _until(lambda: "requests=4" in repr(bed.dispatcher))
        await asyncio.sleep(0.2)
        assert "requests=4" in repr(bed.dispatcher)
        await stream.call.done_writing()
        answers: list[int] = []
        while len(answers) < 10:
            await _until(lambda: worker.waiting)
            worker.finish()
            answers.append(right(await stream.answer()))
            answers += [right(await stream.answer()) for _ in range(worker_answers(worker) - 1)]
    assert sorted(answers) == list(range(10))


def worker_answers(worker: Any) -> int:
    """Requests of the batch that was answered last."""
    batches = len(worker.sent) - len(worker.waiting)
    return len(worker.sent[batches - 1].works)


@pytest.mark.asyncio
async def test_the_bytes_that_a_stream_holds_are_bounded(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_requests, "MAX_BYTES", 3 * question(0).ByteSize())
    worker = bed.worker(eager=False)
    stream = Stream(bed)
    for first in range(9):
        await stream.ask(first)
    await _until(lambda: "requests=3" in repr(bed.dispatcher))
    await asyncio.sleep(0.2)
    assert "requests=3" in repr(bed.dispatcher)
    assert worker.waiting
    stream.call.cancel()
    await _until(lambda: repr(bed.dispatcher) == EMPTY)


@pytest.mark.asyncio
async def test_a_drain_answers_what_is_on_the_stream_and_ends_it(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    stream = Stream(bed)
    await stream.ask(0)
    await _until(lambda: worker.waiting)
    drain = asyncio.create_task(bed.dispatcher.drain(10))
    await stream.ask(1)
    answer = await stream.answer()
    assert (answer.error_message, answer.infer_response.id) == ("the server is draining", "1")
    worker.finish()
    assert right(await stream.answer()) == 0
    await drain
    bed.servicer.close_streams()
    assert await asyncio.wait_for(stream.call.code(), 10) is Code.UNAVAILABLE
    assert await stream.call.details() == "the server is draining"


async def _until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 5 s")


@pytest.mark.asyncio
async def test_an_answer_above_the_limit_is_refused_before_it_is_computed(bed: TestBed) -> None:
    worker, stream = bed.worker(), Stream(bed)
    # The question fits into a message; the answer, which tells its cost, does not.
    shape = (65400 // 12, 3)
    rows = Rows(bytes(shape[0] * shape[1] * 4), shape, Datatype.FP32)
    message = infer_request("ffn", {"hidden_states": rows})
    await stream.call.write(message.SerializeToString())
    refusal = await stream.answer()
    assert "more than max_message_bytes (65536)" in refusal.error_message
    assert refusal.infer_response.parameters["status"].string_param == "INVALID_ARGUMENT"
    assert worker.sent == []
    await stream.call.done_writing()
    assert await stream.rest() == []
