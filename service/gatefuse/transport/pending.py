"""The requests of one stream that have no answer yet, by id: pure bookkeeping."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import grpc

from gatefuse.messages import InferenceError, Result
from gatefuse.question import Question
from gatefuse_protos import open_inference_pb2 as pb

_Waiter = TypeVar("_Waiter")

# Where a server of ours says which status a request on a stream ended with: the protocol has only a text.
STATUS_PARAMETER = "status"
_CODES = {code.name: code for code in grpc.StatusCode}


class Pending(Generic[_Waiter]):
    """Gives out ids, and finds the waiter of an answer. Not safe for threads: the caller holds a lock."""

    def __init__(self) -> None:
        """Nobody waits, and the stream is open."""
        self._waiters: dict[str, _Waiter] = {}
        self._last = 0
        self._ended = False

    def __len__(self) -> int:
        """Returns how many wait."""
        return len(self._waiters)

    @property
    def ended(self) -> bool:
        """True when there will be no more answers."""
        return self._ended

    def add(self, waiter: _Waiter) -> str:
        """Returns the id that the waiter's request must carry; the stream must not have ended."""
        assert not self._ended, "nobody would be told of the end"
        self._last += 1
        request_id = str(self._last)
        self._waiters[request_id] = waiter
        return request_id

    def take(self, request_id: str) -> _Waiter | None:
        """Returns the waiter and forgets it; None if nobody waits under that id."""
        return self._waiters.pop(request_id, None)

    def waiters(self) -> list[_Waiter]:
        """Returns those who have no answer yet."""
        return list(self._waiters.values())

    def end(self) -> list[_Waiter]:
        """The stream is over: returns those who will get no answer."""
        self._ended = True
        left = self.waiters()
        self._waiters.clear()
        return left


def answer_of(response: pb.ModelStreamInferResponse) -> pb.ModelInferResponse | InferenceError:
    """Returns the answer that a message of the stream carries, or the error.

    Its code is UNKNOWN unless the server tells: the protocol has only a text.
    """
    if not response.error_message:
        return response.infer_response
    parameters = response.infer_response.parameters
    name = parameters[STATUS_PARAMETER].string_param if STATUS_PARAMETER in parameters else ""
    return InferenceError(_CODES.get(name, grpc.StatusCode.UNKNOWN), response.error_message)


class Promise(Protocol):
    """What a waiter holds: asyncio's future, or that of threads."""

    def set_result(self, result: Result, /) -> None:
        """It is answered."""

    def set_exception(self, exception: BaseException, /) -> None:
        """It is not."""


def settle(promise: Promise, question: Question, response: pb.ModelStreamInferResponse) -> None:
    """Keeps a promise by a message of the stream.

    An answer that cannot be read is this waiter's trouble, not the stream's.
    """
    answer = answer_of(response)
    if isinstance(answer, InferenceError):
        promise.set_exception(answer)
        return
    try:
        promise.set_result(question.read(answer))
    except Exception as error:
        promise.set_exception(error)


def broken(code: grpc.StatusCode, details: str | None) -> InferenceError:
    """Returns what those who waited on a stream that ended are told."""
    return InferenceError(code, f"the stream ended before the answer: {details or 'no details'}")
