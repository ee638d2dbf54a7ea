"""Many requests in flight on one call: the blocking client's side of ModelStreamInfer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import SupportsIndex

from gatefuse.client.arrays import Arrays, DatatypeLike
from gatefuse.client.forking import Maker
from gatefuse.client.messages import ParameterValue, Result
from gatefuse.client.prepared import InferOptions
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.connection import Connection, in_callback
from gatefuse.client.transport.inference import Inference
from gatefuse.client.transport.open_streams import OpenStreams, abandon_all
from gatefuse.client.transport.pending import too_late
from gatefuse.client.transport.waiter import Waiter
from gatefuse_protos import open_inference_pb2 as pb


class Stream:
    """Requests that share one call; answers come as they are ready, in any order. Safe for threads.

    A stream that broke is opened again by the next request, on another endpoint if there is one; requests that were
    in flight then fail with InferenceError. Where one waited too long, and nothing was heard of the server meanwhile,
    the next ones go to another endpoint, if there is one, and those in flight wait on. A forked child needs a stream of
    its own.
    """

    def __init__(self, transport: Transport, inference: Inference) -> None:
        """Opens a call at the first request."""
        self._transport = transport
        self._inference = inference
        self._maker = Maker("this stream")
        self._lock = threading.Lock()
        self._connections: OpenStreams[Connection] = OpenStreams(transport.endpoints)
        self._closed = False
        # The threads of a stream that nobody has any more, and nobody closed, would stay for good.
        weakref.finalize(self, abandon_all, self._connections).atexit = False

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

    def infer(
        self,
        model: str,
        x: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        layer: SupportsIndex | None = None,
        datatype: DatatypeLike | None = None,
        timeout_s: float | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> Future[Result]:
        """Sends a request and returns without its answer; arguments are as for ``Client.infer``.

        Before it returns it asks for the names of a model that the client does not know, and registers memory for large
        rows where none is free: then it waits for the server.

        Returns:
            A future of the result. Its callbacks run on a thread that the stream needs: they must not wait for other
            answers of this stream. It raises InferenceError where there is no answer: DEADLINE_EXCEEDED after
            ``timeout_s``, UNKNOWN where the server does not tell, since the protocol's stream carries only a text.

        Raises:
            InferenceError: The model's description, or the registration of memory, cannot be had; or the client is
                closed.
            TypeError, ValueError: As for ``Client.infer``.
            RuntimeError: The stream is closed, or belongs to the process that this one was forked from.
        """
        self._check()
        options = InferOptions(outputs, layer, datatype, parameters or {})
        waiter = Waiter(
            self._transport,
            self._inference.infer(model, x, options),
            self._transport.deadline(timeout_s),
        )
        message = waiter.begin()
        if waiter.deadline.has_passed:
            # Looking up and registering took it all: a request sent now might even be answered.
            waiter.fail(too_late(waiter.deadline.timeout_s))
            return waiter.future
        try:
            self._send(waiter, message)
        except BaseException:
            waiter.give_up()
            raise
        return waiter.future

    def close(self, *, wait: bool = True) -> None:
        """Ends the stream, after the answers still due, each by its deadline, or, where ``wait`` is False, at once.

        In a callback of one of its futures it returns at once, and the stream ends so on a thread of its own.
        """
        if not self._maker.is_here:
            return
        with self._lock:
            self._closed = True
            connections = self._connections.take_all()
        if wait and in_callback():
            threading.Thread(
                target=_finish, args=(connections,), name="gatefuse-stream-end", daemon=True
            ).start()
        elif wait:
            _finish(connections)
        else:
            for connection in connections:
                connection.cancel()

    def _check(self) -> None:
        self._maker.check()
        if self._closed:
            raise RuntimeError("the stream is closed")

    def _send(self, waiter: Waiter, message: pb.ModelInferRequest) -> None:
        with self._lock:
            self._check()
            connection = self._connections.usable()
            # It may have ended since. A new one takes the request before it can end.
            if connection is None or not connection.send(waiter, message):
                self._connections.opened(Connection(self._transport, waiter, message))


def _finish(connections: Sequence[Connection]) -> None:
    try:
        for connection in connections:
            connection.finish()
    except BaseException:
        # Nobody else has them any more.
        for connection in connections:
            connection.end_at_once()
        raise
