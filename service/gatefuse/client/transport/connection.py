"""One open call of ModelStreamInfer, with those who wait for its answers, for threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc

from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.pending import END_S, Pending, answer_of, broken, too_late
from gatefuse.client.transport.retry import SILENCE, Failure
from gatefuse.client.transport.rpcs import MODEL_INFER, MODEL_STREAM_INFER, Call
from gatefuse.client.transport.waiter import Waiter, message_of
from gatefuse_protos import open_inference_pb2 as pb

# No wait may be longer than the platform's clock counts.
_LONGEST_WAIT_S = 3600.0
# Marks a connection's own threads.
_this_thread = threading.local()


def in_callback() -> bool:
    """True on a stream's own threads, where its futures' callbacks run: they must not wait for streams."""
    return getattr(_this_thread, "is_a_streams", False)


class Connection:
    """Requests go out as they are sent, one thread hands out the answers, and one tells those who waited too long.

    What else a refused request needs, such as another look-up of its model, has a thread of its own: nobody else waits
    for it. Safe for threads, and for callbacks of its futures, which run on these.
    """

    def __init__(self, transport: Transport, waiter: Waiter, message: pb.ModelInferRequest) -> None:
        """Opens the call on the transport's next endpoint, for a first request and those that follow."""
        self._transport = transport
        self._lock = threading.Condition()
        self._pending: Pending[Waiter] = Pending()
        self._answered: set[Waiter] = set()  # somebody goes on with their requests just now
        self._finishes = False  # somebody waits for the last answer
        self._is_abandoned = False  # nobody can send any more, nor wait for the end
        self._gave_up = False  # the server may have a request whose caller does not wait any more
        self._next_look_s = float("inf")
        self._heard_s = float("-inf")
        # Somebody waited too long, and nothing has been heard since the request was sent.
        self._is_silent = False
        # True: there are requests to be sent, False: there will be no more. One True at a time.
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_awake = False
        self._looks: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._call, self._endpoint = transport.stream(MODEL_STREAM_INFER, self._outgoing())
        # Before anybody reads: where nobody listens the call ends at once, and the request is told so.
        self.send(waiter, message)
        self._threads = self._started()

    def _started(self) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in (
                (self._read, "gatefuse-stream"),
                (self._watch, "gatefuse-stream-deadlines"),
            )
        ]
        try:
            for thread in threads:
                thread.start()
        except BaseException:
            # The system has no more threads.
            with self._lock:
                self._end()
            self._call.cancel()
            raise
        return threads

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
            cancelled = self._end()
        self._call.cancel()
        for waiter in cancelled:
            waiter.give_up()

    def send(self, waiter: Waiter, message: pb.ModelInferRequest) -> bool:
        """Sends a request, whose id is the connection's to choose; False if it has ended and nothing was sent."""
        if not self._take(waiter, message):
            return False
        waiter.when_cancelled(self._drop)
        return True

    def finish(self) -> None:
        """Ends the call after the answers that are still due, each by its deadline; not for a callback."""
        with self._lock:
            self._finishes = True
            # Only then: what is due may have to be sent once more.
            self._lock.wait_for(lambda: self._is_idle)
            self._wakes.put(False)
            gave_up = self._gave_up or bool(self._pending.waiters() or self._answered)
        if not gave_up:
            self._threads[0].join(END_S)
        # Otherwise the server would answer those first who do not wait any more.
        self.cancel()

    def end_at_once(self) -> None:
        """Ends the call and waits for nothing."""
        self._call.cancel()

    def abandon(self) -> None:
        """Has the call end after the answers that are still due: nobody is left who could send or close.

        Takes no lock, since it runs wherever garbage is collected.
        """
        self._is_abandoned = True
        self._looks.put(None)

    def cancel(self) -> None:
        """Ends the call; those who still wait are told that it was cancelled, before this returns if they can be."""
        self._call.cancel()
        if in_callback():
            return
        for thread in self._threads:
            thread.join()

    @property
    def _is_idle(self) -> bool:
        due = (*self._pending.waiters(), *self._answered)
        return self._pending.ended or all(each.future.cancelled() for each in due)

    def _take(self, waiter: Waiter, message: pb.ModelInferRequest) -> bool:
        with self._lock:
            if self._pending.ended:
                return False
            waiter.request_id = self._pending.add(waiter, message)
            waiter.sent_s = time.monotonic()
            if not self._is_awake:
                self._is_awake = True
                self._wakes.put(True)
            if waiter.deadline.at_s < self._next_look_s:
                self._next_look_s = waiter.deadline.at_s
                self._looks.put(None)
        return True

    def _drop(self, waiter: Waiter) -> None:
        """The caller cancelled the future: nothing is kept of the request, and nobody waits for its end."""
        with self._lock:
            # Otherwise somebody goes on with it just now, and sees it.
            is_taken = self._pending.take(waiter.request_id) is not None
            self._gave_up |= is_taken
            self._look_if_idle()
        if is_taken:
            waiter.give_up()

    def _look_if_idle(self) -> None:
        """Somebody is not due any more: if it was the last one, those look who wait for that. Under the lock."""
        # The cancelled are not pending any more.
        if not self._pending.is_empty or not all(
            each.future.cancelled() for each in self._answered
        ):
            return
        if self._finishes:
            self._lock.notify_all()
        if self._is_abandoned:
            self._looks.put(None)

    def _end(self) -> list[Waiter]:
        """There will be no more answers: returns who waits for one. Under the lock."""
        left = self._pending.end()
        self._wakes.put(False)
        self._looks.put(None)
        self._lock.notify_all()
        return left

    def _outgoing(self) -> Iterator[pb.ModelInferRequest]:
        # gRPC reads this in a thread of its own, which waits in between where the server takes no more.
        while self._wakes.get():
            while (message := self._next_unsent()) is not None:
                yield message

    def _next_unsent(self) -> pb.ModelInferRequest | None:
        with self._lock:
            message = self._pending.next_unsent()
            self._is_awake = message is not None
        return message

    def _read(self) -> None:
        _this_thread.is_a_streams = True
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
                left, answered = self._end(), list(self._answered)
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
        _this_thread.is_a_streams = True
        while call is not None and call.rpc is not MODEL_INFER:
            call = waiter.go_on(waiter.answer_to(call))
        self._send_again(waiter, call)

    def _send_again(self, waiter: Waiter, call: Call | None) -> None:
        """Sends what follows from an answer, if anything does: then the request waits for another one."""
        if call is not None and not self._take(waiter, message_of(call)):
            waiter.fail(broken(grpc.StatusCode.UNAVAILABLE, "it ended before a second attempt"))
        with self._lock:
            self._answered.discard(waiter)
            self._look_if_idle()
        if waiter.future.cancelled():
            # Perhaps while it was not pending.
            self._drop(waiter)

    def _watch(self) -> None:
        """Tells those who wait for longer than they wanted to, until the end."""
        _this_thread.is_a_streams = True
        while (expired := self._expired()) is not None:
            if self.is_silent:
                self._transport.stream_failed(self._endpoint, SILENCE)
            for waiter in expired:
                waiter.fail(too_late(waiter.deadline.timeout_s))

    def _expired(self) -> list[Waiter] | None:
        """Waits for the next deadline; returns whose it was, None at the end of the call."""
        while True:
            with self._lock:
                if self._pending.ended:
                    return None
                if self._is_abandoned and self._is_idle:
                    self._call.cancel()
                    return None
                if expired := self._pending.take_all(lambda each: each.deadline.has_passed):
                    self._gave_up = True
                    self._is_silent |= any(each.sent_s >= self._heard_s for each in expired)
                    self._lock.notify_all()
                    return expired
                deadlines_s = (each.deadline.at_s for each in self._pending.waiters())
                self._next_look_s = min(deadlines_s, default=float("inf"))
                wait_s = min(self._next_look_s - time.monotonic(), _LONGEST_WAIT_S)
            with suppress(queue.Empty):
                self._looks.get(timeout=max(wait_s, 0.0))
