"""Many requests in flight on one call: the blocking client's side of ModelStreamInfer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import SupportsIndex

from gatefuse.client.arrays import Arrays, DatatypeLike
from gatefuse.client.forking import Maker
from gatefuse.client.messages import ParameterValue, Result
from gatefuse.client.prepared import InferOptions
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.connection import Connection, Waiter
from gatefuse.client.transport.inference import Inference
from gatefuse.client.transport.open_streams import OpenStreams


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
        # A connection may end between its opening and the sending: then another is opened.
        try:
            while not self._open().send(waiter, message):
                pass
        except BaseException:
            waiter.give_up()
            raise
        return waiter.future

    def close(self, *, wait: bool = True) -> None:
        """Ends the stream, after the answers still due or, where ``wait`` is False, at once.

        In a callback of one of its futures it returns at once, and the stream ends so on a thread of its own.
        """
        if not self._maker.is_here:
            return
        with self._lock:
            self._closed = True
            connections = self._connections.take_all()
        deadline = self._transport.deadline()
        for connection in connections:
            if wait:
                connection.finish(deadline.left_s())
            else:
                connection.cancel()

    def _check(self) -> None:
        self._maker.check()
        if self._closed:
            raise RuntimeError("the stream is closed")

    def _open(self) -> Connection:
        with self._lock:
            self._check()
            connection = self._connections.usable()
            return connection or self._connections.opened(Connection(self._transport))
