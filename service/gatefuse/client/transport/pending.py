"""The requests of one stream that have no answer yet, by id: pure bookkeeping."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from gatefuse.client.messages import InferenceError
from gatefuse.protocol_words import STATUS_PARAMETER
from gatefuse_protos import open_inference_pb2 as pb

_Waiter = TypeVar("_Waiter")

# A server that has answered everything is given so long to end the stream itself.
END_S = 1.0

_CODES = {code.name: code for code in grpc.StatusCode}


class Pending(Generic[_Waiter]):
    """Gives out ids, keeps what is still to be sent, and finds the waiter of an answer.

    A request whose waiter was taken is neither kept nor sent. Not safe for threads: the caller holds a lock.
    """

    def __init__(self) -> None:
        """Nobody waits, and the stream is open."""
        self._waiters: dict[str, _Waiter] = {}
        self._unsent: OrderedDict[str, pb.ModelInferRequest] = OrderedDict()
        self._last = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        """True when there will be no more answers."""
        return self._ended

    def add(self, waiter: _Waiter, message: pb.ModelInferRequest) -> str:
        """Takes in a request to be sent; returns the id that it gets. The stream must not have ended."""
        assert not self._ended, "nobody would be told of the end"
        self._last += 1
        request_id = message.id = str(self._last)
        self._waiters[request_id] = waiter
        self._unsent[request_id] = message
        return request_id

    def next_unsent(self) -> pb.ModelInferRequest | None:
        """Returns the request that is to be sent next, and forgets it; None if there is none."""
        return self._unsent.popitem(last=False)[1] if self._unsent else None

    def take(self, request_id: str) -> _Waiter | None:
        """Returns the waiter and forgets it; None if nobody waits under that id."""
        self._unsent.pop(request_id, None)
        return self._waiters.pop(request_id, None)

    def take_all(self, is_wanted: Callable[[_Waiter], bool]) -> list[_Waiter]:
        """Returns those for whom it is true, and forgets them."""
        ids = [request_id for request_id, waiter in self._waiters.items() if is_wanted(waiter)]
        return [waiter for each in ids if (waiter := self.take(each)) is not None]

    @property
    def is_empty(self) -> bool:
        """True when nobody waits."""
        return not self._waiters

    def waiters(self) -> list[_Waiter]:
        """Returns those who have no answer yet."""
        return list(self._waiters.values())

    def end(self) -> list[_Waiter]:
        """The stream is over: returns those who will get no answer."""
        self._ended = True
        left = self.waiters()
        self._waiters.clear()
        self._unsent.clear()
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


def too_late(timeout_s: float) -> InferenceError:
    """Returns what one is told whose deadline has passed."""
    text = f"no answer on the stream within {timeout_s:g} s"
    return InferenceError(grpc.StatusCode.DEADLINE_EXCEEDED, text)


def broken(code: grpc.StatusCode, details: str | None) -> InferenceError:
    """Returns what those who waited on a stream that ended are told."""
    return InferenceError(code, f"the stream ended before the answer: {details or 'no details'}")
