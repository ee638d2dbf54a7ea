"""Many requests in flight on one call: the blocking client's side of ModelStreamInfer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc

from gatefuse.messages import Result
from gatefuse.question import Question
from gatefuse.transport.blocking import Transport
from gatefuse.transport.pending import Pending, broken, settle
from gatefuse.transport.rpcs import MODEL_STREAM_INFER
from gatefuse_protos import open_inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: Future[Result]
    question: Question


class Connection:
    """One call of ModelStreamInfer: requests go out as they are sent, and one thread hands out the answers.

    Safe for threads.
    """

    def __init__(self, transport: Transport) -> None:
        """Opens the call on the transport's next endpoint."""
        self._transport = transport
        self._lock = threading.Lock()
        self._pending: Pending[_Waiter] = Pending()
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        self._call, self._endpoint = transport.stream(MODEL_STREAM_INFER, self._outgoing())
        self._reader = threading.Thread(target=self._read, name="gatefuse-stream", daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        """True when no more requests can be sent."""
        with self._lock:
            return self._pending.ended

    def send(self, question: Question) -> Future[Result] | None:
        """Sends a request, whose id is the connection's to choose; None if it has ended and nothing was sent."""
        future: Future[Result] = Future()
        with self._lock:
            if self._pending.ended:
                return None
            question.request.id = self._pending.add(_Waiter(future, question))
            # Under the lock, so that nothing is queued behind the end of the requests.
            self._requests.put(question.request)
        return future

    def finish(self, timeout_s: float) -> None:
        """Says that there are no more requests, and waits for the answers that are still due."""
        self._requests.put(None)
        self._reader.join(timeout_s)
        self.cancel()

    def cancel(self) -> None:
        """Ends the call; those who still wait are told that it was cancelled."""
        self._call.cancel()
        self._reader.join()

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
            for waiter in left:
                if waiter.future.set_running_or_notify_cancel():
                    waiter.future.set_exception(error)

    def _hand_out(self, response: pb.ModelStreamInferResponse) -> None:
        with self._lock:
            waiter = self._pending.take(response.infer_response.id)
        if waiter is None or not waiter.future.set_running_or_notify_cancel():
            return
        settle(waiter.future, waiter.question, response)


class Stream:
    """Requests that share one call; answers come as they are ready, in any order. Safe for threads.

    A stream that broke is opened again by the next request, on another endpoint if there is one; requests that were
    in flight then fail with InferenceError.
    """

    def __init__(self, transport: Transport, ask: Callable[..., Question]) -> None:
        """``ask`` makes a question of ``infer``'s arguments."""
        self._transport = transport
        self._ask = ask
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    def __enter__(self) -> Stream:
        """Returns the stream itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Waits for the answers still due, unless an exception leaves the block: then they are given up."""
        self.close(wait=kind is None)

    @property
    def timeout_s(self) -> float:
        """Seconds that an answer may take unless the caller says otherwise."""
        return self._transport.timeout_s

    def infer(self, model: str, x: Any, **options: Any) -> Future[Result]:
        """Sends a request and returns at once.

        Args:
            model: The model's name.
            x: As for ``Client.infer``.
            **options: As for ``Client.infer``, save that there is no ``timeout_s``: give it to the future's ``result``.

        Returns:
            A future of the result. It raises InferenceError where there is no answer; its code is UNKNOWN where the
            server does not tell, since the protocol's stream carries only a text.

        Raises:
            InferenceError: The name of the model's only input cannot be learnt.
            TypeError, ValueError: As for ``Client.infer``.
            RuntimeError: The stream is closed.
        """
        question = self._ask(model, x, **options)
        # A connection may end between its opening and the sending: then another is opened.
        while (future := self._open().send(question)) is None:
            pass
        return future

    def close(self, *, wait: bool = True) -> None:
        """Ends the stream, after the answers still due or, where ``wait`` is False, at once."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is None:
            return
        if wait:
            connection.finish(self._transport.timeout_s)
        else:
            connection.cancel()

    def _open(self) -> Connection:
        with self._lock:
            if self._closed:
                raise RuntimeError("the stream is closed")
            if self._connection is None or self._connection.ended:
                self._connection = Connection(self._transport)
            return self._connection
