"""One open call of ModelStreamInfer, with those who wait for its answers, for threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import grpc

from gatefuse.messages import InferenceError, Result
from gatefuse.transport.blocking import Transport
from gatefuse.transport.deadline import Deadline
from gatefuse.transport.pending import Pending, answer_of, broken
from gatefuse.transport.rpcs import MODEL_INFER, MODEL_STREAM_INFER, Steps, advance
from gatefuse_protos import open_inference_pb2 as pb

# No wait of a condition may be longer than the platform's clock counts.
_LONGEST_WAIT_S = 3600.0


class Waiter:
    """A caller's request on its way: one thread at a time has it, and goes on with it or ends it."""

    def __init__(self, transport: Transport, steps: Steps[Result], deadline: Deadline) -> None:
        """``transport`` makes the calls that do not belong on the stream."""
        self.future: Future[Result] = Future()
        self.deadline = deadline
        self._transport = transport
        self._steps = steps

    def begin(self) -> pb.ModelInferRequest:
        """Returns the first request to be sent. Raises what the caller has done wrong."""
        return self._next(None)

    def go_on(self, answer: pb.ModelInferResponse | InferenceError) -> pb.ModelInferRequest | None:
        """Takes what came of the last request; returns another one to be sent, or None and the future is done."""
        if self.future.cancelled():
            self.future.set_running_or_notify_cancel()
            self._steps.close()
            return None
        try:
            return self._next(answer)
        except StopIteration as end:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(end.value)
        except Exception as error:
            self.fail(error)
        return None

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self._steps.close()
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def give_up(self) -> None:
        """Nobody has the future."""
        self._steps.close()

    def _next(self, answer: pb.ModelInferResponse | InferenceError | None) -> pb.ModelInferRequest:
        call = advance(self._steps, answer)
        while call.rpc is not MODEL_INFER:
            call = advance(self._steps, self._transport.answer_to(call, self.deadline))
        message = call.request
        assert isinstance(message, pb.ModelInferRequest)
        return message


class Connection:
    """Requests go out as they are sent, one thread hands out the answers, and one tells those who waited too long.

    Safe for threads.
    """

    def __init__(self, transport: Transport) -> None:
        """Opens the call on the transport's next endpoint."""
        self._transport = transport
        self._lock = threading.Condition()
        self._pending: Pending[Waiter] = Pending()
        self._hands_out = False  # the reader goes on with somebody's request
        self._finishes = False  # somebody waits for the last answer
        self._gave_up = False  # the server has a request whose caller waited too long
        self._next_look_s = float("inf")
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        self._call, self._endpoint = transport.stream(MODEL_STREAM_INFER, self._outgoing())
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in (
                (self._read, "gatefuse-stream"),
                (self._watch, "gatefuse-stream-deadlines"),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        """True when no more requests can be sent."""
        with self._lock:
            return self._pending.ended

    def send(self, waiter: Waiter, message: pb.ModelInferRequest) -> bool:
        """Sends a request, whose id is the connection's to choose; False if it has ended and nothing was sent."""
        with self._lock:
            if self._pending.ended:
                return False
            message.id = self._pending.add(waiter)
            # Under the lock, so that nothing is queued behind the end of the requests.
            self._requests.put(message)
            if waiter.deadline.at_s < self._next_look_s:
                self._lock.notify_all()
        return True

    def finish(self, timeout_s: float) -> None:
        """Waits for the answers that are still due, and ends the call."""
        end_s = time.monotonic() + timeout_s
        with self._lock:
            self._finishes = True
            # Only then: what is due may have to be sent once more.
            self._lock.wait_for(lambda: self._is_idle, timeout_s)
            self._requests.put(None)
            gave_up = self._gave_up or bool(self._pending.waiters())
        if not gave_up:
            self._threads[0].join(max(end_s - time.monotonic(), 0.0))
        # Otherwise the server would answer those first who do not wait any more.
        self.cancel()

    def cancel(self) -> None:
        """Ends the call; those who still wait are told that it was cancelled."""
        self._call.cancel()
        for thread in self._threads:
            thread.join()

    @property
    def _is_idle(self) -> bool:
        due = (each for each in self._pending.waiters() if not each.future.cancelled())
        return self._pending.ended or not (self._hands_out or any(due))

    def _outgoing(self) -> Iterator[pb.ModelInferRequest]:
        # gRPC reads this in a thread of its own: None ends it.
        return iter(self._requests.get, None)

    def _read(self) -> None:
        error = broken(grpc.StatusCode.UNAVAILABLE, "the server closed it")
        try:
            for response in self._call:
                self._transport.answered(self._endpoint)
                self._hand_out(response)
        except grpc.RpcError as failure:
            self._transport.stream_failed(self._endpoint, failure)
            error = broken(self._call.code(), self._call.details())
        finally:
            with self._lock:
                left = self._pending.end()
                self._requests.put(None)
                self._lock.notify_all()
            for waiter in left:
                waiter.fail(error)

    def _hand_out(self, response: pb.ModelStreamInferResponse) -> None:
        with self._lock:
            waiter = self._pending.take(response.infer_response.id)
            self._hands_out = waiter is not None
        if waiter is None:
            return
        message = waiter.go_on(answer_of(response))
        if message is not None and not self.send(waiter, message):
            waiter.fail(broken(grpc.StatusCode.UNAVAILABLE, "it ended before a second attempt"))
        with self._lock:
            self._hands_out = False
            if self._finishes:
                self._lock.notify_all()

    def _watch(self) -> None:
        """Tells those who wait for longer than they wanted to, until the end."""
        while (expired := self._expired()) is not None:
            for waiter in expired:
                text = f"no answer on the stream within {waiter.deadline.timeout_s:g} s"
                waiter.fail(InferenceError(grpc.StatusCode.DEADLINE_EXCEEDED, text))

    def _expired(self) -> list[Waiter] | None:
        """Waits for the next deadline; returns whose it was, None at the end of the call."""
        with self._lock:
            while not self._pending.ended:
                if expired := self._pending.take_all(lambda each: each.deadline.has_passed):
                    self._gave_up = True
                    self._lock.notify_all()
                    return expired
                deadlines_s = (each.deadline.at_s for each in self._pending.waiters())
                self._next_look_s = min(deadlines_s, default=float("inf"))
                self._lock.wait(min(self._next_look_s - time.monotonic(), _LONGEST_WAIT_S))
        return None
