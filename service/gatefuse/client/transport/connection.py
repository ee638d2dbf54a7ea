"""One open call of ModelStreamInfer, with those who wait for its answers, for threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import grpc
from google.protobuf.message import Message

from gatefuse.client.messages import InferenceError, Result
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.deadline import Deadline
from gatefuse.client.transport.pending import Pending, answer_of, broken
from gatefuse.client.transport.retry import SILENCE, Failure
from gatefuse.client.transport.rpcs import MODEL_INFER, MODEL_STREAM_INFER, Call, Steps, advance
from gatefuse_protos import open_inference_pb2 as pb

# No wait of a condition may be longer than the platform's clock counts.
_LONGEST_WAIT_S = 3600.0
# On a connection's own threads: which one's.
_this_thread = threading.local()


class Waiter:
    """A caller's request on its way: one thread at a time has it, and goes on with it or ends it."""

    def __init__(self, transport: Transport, steps: Steps[Result], deadline: Deadline) -> None:
        """``transport`` makes the calls that do not belong on the stream."""
        self.future: Future[Result] = Future()
        self.deadline = deadline
        self.sent_s = float("-inf")
        self._transport = transport
        self._steps = steps
        self._lock = threading.Lock()
        self._is_told = False

    def begin(self) -> pb.ModelInferRequest:
        """Returns the first request to be sent. Raises what the caller has done wrong."""
        call = advance(self._steps, None)
        while call.rpc is not MODEL_INFER:
            call = advance(self._steps, self.answer_to(call))
        return message_of(call)

    def answer_to(self, call: Call) -> Message | InferenceError:
        """What comes of a call that does not belong on the stream; waits for it."""
        return self._transport.answer_to(call, self.deadline)

    def go_on(self, answer: Message | InferenceError) -> Call | None:
        """Takes what came of the last call; returns the next one, or None and the caller is told."""
        if self.future.cancelled() or self._is_told:
            self._takes_word()
            self._steps.close()
            return None
        try:
            return advance(self._steps, answer)
        except StopIteration as end:
            if self._takes_word():
                self.future.set_result(end.value)
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
            self.future.set_exception(error)

    def give_up(self) -> None:
        """Nobody has the future."""
        self._steps.close()

    def _takes_word(self) -> bool:
        """Whether the caller is still to be told: of several threads that want to, the first one does."""
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        return is_first and self.future.set_running_or_notify_cancel()


def message_of(call: Call) -> pb.ModelInferRequest:
    """Returns the request of a call that belongs on the stream."""
    assert isinstance(call.request, pb.ModelInferRequest)
    return call.request


class Connection:
    """Requests go out as they are sent, one thread hands out the answers, and one tells those who waited too long.

    What else a refused request needs, such as another look-up of its model, has a thread of its own: nobody else waits
    for it. Safe for threads, and for callbacks of its futures, which run on these.
    """

    def __init__(self, transport: Transport) -> None:
        """Opens the call on the transport's next endpoint."""
        self._transport = transport
        self._lock = threading.Condition()
        self._pending: Pending[Waiter] = Pending()
        self._answered: set[Waiter] = set()  # somebody goes on with their requests just now
        self._finishes = False  # somebody waits for the last answer
        self._gave_up = False  # the server has a request whose caller waited too long
        self._next_look_s = float("inf")
        self._heard_s = float("-inf")
        # Somebody waited too long, and nothing has been heard since the request was sent.
        self._is_silent = False
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

    @property
    def is_silent(self) -> bool:
        """True where the server seems to hang: other requests had better go to another one, if there is one."""
        with self._lock:
            return self._is_silent

    def cancel_if_idle(self) -> None:
        """Ends the call, without waiting for its end, if nobody waits for an answer."""
        with self._lock:
            if not self._is_idle:
                return
            # At once, so that nothing is sent between this and the end.
            cancelled = self._pending.end()
            self._lock.notify_all()
        self._call.cancel()
        for waiter in cancelled:
            waiter.give_up()

    def send(self, waiter: Waiter, message: pb.ModelInferRequest) -> bool:
        """Sends a request, whose id is the connection's to choose; False if it has ended and nothing was sent."""
        with self._lock:
            if self._pending.ended:
                return False
            message.id = self._pending.add(waiter)
            waiter.sent_s = time.monotonic()
            # Under the lock, so that nothing is queued behind the end of the requests.
            self._requests.put(message)
            if waiter.deadline.at_s < self._next_look_s:
                self._lock.notify_all()
        return True

    def finish(self, timeout_s: float) -> None:
        """Waits for the answers that are still due, and ends the call; in a callback, without waiting for it."""
        if self._is_own_thread:
            threading.Thread(
                target=self.finish, args=(timeout_s,), name="gatefuse-stream-end", daemon=True
            ).start()
            return
        end_s = time.monotonic() + timeout_s
        with self._lock:
            self._finishes = True
            # Only then: what is due may have to be sent once more.
            self._lock.wait_for(lambda: self._is_idle, timeout_s)
            self._requests.put(None)
            gave_up = self._gave_up or bool(self._pending.waiters() or self._answered)
        if not gave_up:
            self._threads[0].join(max(end_s - time.monotonic(), 0.0))
        # Otherwise the server would answer those first who do not wait any more.
        self.cancel()

    def cancel(self) -> None:
        """Ends the call; those who still wait are told that it was cancelled, before this returns if they can be."""
        self._call.cancel()
        if self._is_own_thread:
            return
        for thread in self._threads:
            thread.join()

    @property
    def _is_own_thread(self) -> bool:
        """True in a callback of one of its futures: its threads cannot wait for themselves."""
        return getattr(_this_thread, "connection", None) is self

    @property
    def _is_idle(self) -> bool:
        due = (each for each in self._pending.waiters() if not each.future.cancelled())
        return self._pending.ended or not (self._answered or any(due))

    def _outgoing(self) -> Iterator[pb.ModelInferRequest]:
        # gRPC reads this in a thread of its own: None ends it.
        return iter(self._requests.get, None)

    def _read(self) -> None:
        _this_thread.connection = self
        error = broken(grpc.StatusCode.UNAVAILABLE, "the server closed it")
        try:
            for response in self._call:
                self._transport.answered(self._endpoint)
                self._hand_out(response)
        except grpc.RpcError as failure:
            self._transport.stream_failed(self._endpoint, Failure.of(failure))
            error = broken(self._call.code(), self._call.details())
        finally:
            with self._lock:
                left, answered = self._pending.end(), list(self._answered)
                self._requests.put(None)
                self._lock.notify_all()
            for waiter in left:
                waiter.fail(error)
            for waiter in answered:
                waiter.tell(error)

    def _hand_out(self, response: pb.ModelStreamInferResponse) -> None:
        with self._lock:
            self._heard_s, self._is_silent = time.monotonic(), False
            waiter = self._pending.take(response.infer_response.id)
            if waiter is None:
                return
            self._answered.add(waiter)
        call = waiter.go_on(answer_of(response))
        if call is None or call.rpc is MODEL_INFER:
            self._send_again(waiter, call)
        else:
            threading.Thread(
                target=self._recover,
                args=(waiter, call),
                name="gatefuse-stream-recovery",
                daemon=True,
            ).start()

    def _recover(self, waiter: Waiter, call: Call | None) -> None:
        """Makes the calls that a refused request needs before it is sent again, if it is."""
        _this_thread.connection = self
        while call is not None and call.rpc is not MODEL_INFER:
            call = waiter.go_on(waiter.answer_to(call))
        self._send_again(waiter, call)

    def _send_again(self, waiter: Waiter, call: Call | None) -> None:
        """Sends what follows from an answer, if anything does: then the request waits for another one."""
        if call is not None and not self.send(waiter, message_of(call)):
            waiter.fail(broken(grpc.StatusCode.UNAVAILABLE, "it ended before a second attempt"))
        with self._lock:
            self._answered.discard(waiter)
            if self._finishes:
                self._lock.notify_all()

    def _watch(self) -> None:
        """Tells those who wait for longer than they wanted to, until the end."""
        _this_thread.connection = self
        while (expired := self._expired()) is not None:
            if self.is_silent:
                self._transport.stream_failed(self._endpoint, SILENCE)
            for waiter in expired:
                text = f"no answer on the stream within {waiter.deadline.timeout_s:g} s"
                waiter.fail(InferenceError(grpc.StatusCode.DEADLINE_EXCEEDED, text))

    def _expired(self) -> list[Waiter] | None:
        """Waits for the next deadline; returns whose it was, None at the end of the call."""
        with self._lock:
            while not self._pending.ended:
                if expired := self._pending.take_all(lambda each: each.deadline.has_passed):
                    self._gave_up = True
                    self._is_silent |= any(each.sent_s >= self._heard_s for each in expired)
                    self._lock.notify_all()
                    return expired
                deadlines_s = (each.deadline.at_s for each in self._pending.waiters())
                self._next_look_s = min(deadlines_s, default=float("inf"))
                self._lock.wait(min(self._next_look_s - time.monotonic(), _LONGEST_WAIT_S))
        return None
