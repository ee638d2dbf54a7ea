"""A caller's request on a blocking stream, from its first message to the result of its future."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from google.protobuf.message import Message

from gatefuse.client.messages import InferenceError, Result
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.deadline import Deadline
from gatefuse.client.transport.rpcs import MODEL_INFER, Call, Steps, advance
from gatefuse_protos import open_inference_pb2 as pb

log = logging.getLogger(__name__)


class Waiter:
    """A caller's request on its way: one thread at a time has it, and goes on with it or ends it."""

    def __init__(self, transport: Transport, steps: Steps[Result], deadline: Deadline) -> None:
        """``transport`` makes the calls that do not belong on the stream."""
        self.future: Future[Result] = Future()
        self.deadline = deadline
        self.request_id = ""
        self.sent_s = float("-inf")
        self._transport = transport
        self._steps = steps
        self._lock = threading.Lock()
        self._is_told = False
        self._drop: Callable[[Waiter], None] | None = None

    def begin(self) -> pb.ModelInferRequest:
        """Returns the first request to be sent. Raises what the caller has done wrong."""
        call = advance(self._steps, None)
        while call.rpc is not MODEL_INFER:
            call = advance(self._steps, self.answer_to(call))
        return message_of(call)

    def when_cancelled(self, drop: Callable[[Waiter], None]) -> None:
        """Has a method called with this waiter where the caller cancels the future while it is still in use."""
        self._drop = drop
        # A future keeps its callbacks for good: the two would be a cycle, with the answer in it.
        self.future.add_done_callback(partial(_drop_if_cancelled, weakref.ref(self)))

    def drop(self) -> None:
        """The caller cancelled the future."""
        if self._drop is not None:
            self._drop(self)

    def answer_to(self, call: Call) -> Message | InferenceError:
        """What comes of a call that does not belong on the stream; waits for it."""
        return self._transport.answer_to(call, self.deadline)

    def go_on(self, answer: Message | InferenceError) -> Call | None:
        """Takes what came of the last call; returns the next one, or None and the caller is told."""
        if self.future.cancelled() or self._is_told:
            self.give_up()
            return None
        try:
            return advance(self._steps, answer)
        except StopIteration as end:
            if self._takes_word():
                with _callbacks_apart():
                    self.future.set_result(end.value)
        except InferenceError as error:
            # The frames of a traceback have the future, which would hold itself, and the request with it.
            self.fail(error.with_traceback(None))
        except Exception as error:
            self.fail(error)
        return None

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self._steps.close()
        self.tell(error)

    def tell(self, error: Exception) -> None:
        """Tells the caller that there will be none, while another thread has the request and ends it."""
        if self._takes_word():
            with _callbacks_apart():
                self.future.set_exception(error)

    def give_up(self) -> None:
        """Nobody wants the answer: the caller has no future, was told already, or has cancelled it."""
        self._steps.close()
        # Those in concurrent.futures.wait() hear of a cancelled one only now.
        self._takes_word()

    def _takes_word(self) -> bool:
        """Whether the caller is still to be told: of several threads that want to, the first one does."""
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        return is_first and self.future.set_running_or_notify_cancel()


@contextmanager
def _callbacks_apart() -> Iterator[None]:
    """A stream's threads go on whatever a callback raises; concurrent.futures itself takes care of an Exception."""
    try:
        yield
    except BaseException:
        log.exception("a callback of a future raised")


def _drop_if_cancelled(waiting: weakref.ref[Waiter], future: Future[Result]) -> None:
    if future.cancelled() and (waiter := waiting()) is not None:
        waiter.drop()


def message_of(call: Call) -> pb.ModelInferRequest:
    """Returns the request of a call that belongs on the stream."""
    assert isinstance(call.request, pb.ModelInferRequest)
    return call.request
