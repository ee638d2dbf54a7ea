"""Many requests in flight on one call: the asyncio client's side of ModelStreamInfer."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import SupportsIndex, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from gatefuse.client.arrays import Arrays, DatatypeLike
from gatefuse.client.messages import InferenceError, ParameterValue, Result
from gatefuse.client.prepared import InferOptions
from gatefuse.client.transport.aio_ending import Ending
from gatefuse.client.transport.asynchronous import AioTransport, run
from gatefuse.client.transport.deadline import Deadline
from gatefuse.client.transport.inference import Inference
from gatefuse.client.transport.open_streams import OpenStreams, abandon_all
from gatefuse.client.transport.pending import END_S, Pending, answer_of, broken, too_late
from gatefuse.client.transport.retry import SILENCE, Failure
from gatefuse.client.transport.rpcs import MODEL_INFER, MODEL_STREAM_INFER, Call
from gatefuse_protos import open_inference_pb2 as pb

_Answer: TypeAlias = "asyncio.Future[pb.ModelInferResponse | InferenceError]"


class AioConnection:
    """One call of ModelStreamInfer: requests go out as they are sent, and one task hands out the answers."""

    def __init__(self, transport: AioTransport) -> None:
        """Opens the call on the transport's next endpoint."""
        self.is_silent = False
        self._heard_s = float("-inf")
        self._transport = transport
        self._pending: Pending[_Answer] = Pending()
        self._gave_up = False  # the server may have a request that nobody waits for any more
        self._is_complete = False  # there will be no more requests
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._call, self._endpoint = transport.stream(MODEL_STREAM_INFER, self._outgoing())
        self._ending = Ending(self._call)
        self._reader = asyncio.create_task(self._read())

    @property
    def ended(self) -> bool:
        """True when no more requests can be sent."""
        return self._pending.ended

    async def answer_to(
        self, message: pb.ModelInferRequest, deadline: Deadline
    ) -> pb.ModelInferResponse | InferenceError:
        """Sends a request, whose id is the connection's to choose, and waits; the connection must not have ended."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        request_id, sent_s = self._pending.add(answer, message), time.monotonic()
        self._wake.set()
        try:
            return await asyncio.wait_for(answer, deadline.left_s())
        except TimeoutError:
            self._waited_too_long(sent_s)
            return too_late(deadline.timeout_s)
        finally:
            # What nobody waits for any more is not sent, nor kept.
            if self._pending.take(request_id) is not None:
                self._gave_up = True

    def cancel_if_idle(self) -> None:
        """Ends the call, without waiting for its end, if nobody waits for an answer."""
        if not self._pending.waiters():
            self._call.cancel()

    async def finish(self) -> None:
        """Says that there are no more requests, and ends the call.

        It is cancelled where the server may have requests that nobody waits for: it would answer those first.
        """
        self._complete()
        try:
            if not (self._gave_up or self._pending.waiters()):
                await asyncio.wait([self._reader], timeout=END_S)
        finally:
            await self.cancel()

    async def cancel(self) -> None:
        """Ends the call; those who still wait are told that it was cancelled."""
        self._call.cancel()
        await asyncio.wait([self._reader])

    def abandon(self) -> None:
        """Ends the call: nobody is left who could send, wait or close. Runs wherever garbage is collected."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._call.cancel)

    def _waited_too_long(self, sent_s: float) -> None:
        """A request that was sent then is given up: where nothing was heard since, the server seems to hang."""
        if sent_s >= self._heard_s:
            self.is_silent = True
            self._transport.stream_failed(self._endpoint, SILENCE)

    def _complete(self) -> None:
        self._is_complete = True
        self._wake.set()

    async def _outgoing(self) -> AsyncIterator[pb.ModelInferRequest]:
        # gRPC asks for the next one when the last one is written.
        while True:
            while (request := self._pending.next_unsent()) is not None:
                yield request
            if self._is_complete:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _read(self) -> None:
        error = broken(grpc.StatusCode.UNAVAILABLE, "the server closed it")
        try:
            async for response in self._call:
                # What grpc.aio makes of an answer that cannot be parsed.
                if response is None:
                    error = broken(grpc.StatusCode.INTERNAL, "an answer cannot be parsed")
                    self._call.cancel()
                    break
                self._heard_s, self.is_silent = time.monotonic(), False
                self._transport.answered(self._endpoint)
                self._hand_out(response)
        except grpc.aio.AioRpcError as failure:
            status = await self._ending.of(failure)
            if status.code() is not grpc.StatusCode.OK:
                self._transport.stream_failed(self._endpoint, Failure.of(status))
                error = broken(status.code(), status.details())
        except asyncio.CancelledError:
            # grpc.aio raises this in the reader of a call that was cancelled, by us.
            error = broken(grpc.StatusCode.CANCELLED, "the client closed it")
        finally:
            self._complete()
            for waiter in self._pending.end():
                if not waiter.done():
                    waiter.set_result(error)

    def _hand_out(self, response: pb.ModelStreamInferResponse) -> None:
        waiter = self._pending.take(response.infer_response.id)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer_of(response))


class AioStream:
    """Requests that share one call; answers come as they are ready, in any order.

    A stream that broke is opened again by the next request, on another endpoint if there is one; requests that were
    in flight then fail with InferenceError. Where one waited too long, and nothing was heard of the server meanwhile,
    the next ones go to another endpoint, if there is one, and those in flight wait on.
    """

    def __init__(self, transport: AioTransport, inference: Inference) -> None:
        """Opens a call at the first request."""
        self._transport = transport
        self._inference = inference
        self._connections: OpenStreams[AioConnection] = OpenStreams(transport.endpoints)
        # The tasks of a stream that nobody has any more, and nobody closed, would stay until its client is closed.
        weakref.finalize(self, abandon_all, self._connections).atexit = False
        self._in_flight: set[asyncio.Future[None]] = set()
        self._closed = False

    async def __aenter__(self) -> AioStream:
        """Returns the stream itself."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Waits for the answers still due, unless an exception leaves the block: then they are given up."""
        await self.close(wait=kind is None)

    @property
    def timeout_s(self) -> float:
        """Seconds that an answer may take unless the caller says otherwise."""
        return self._transport.timeout_s

    async def infer(
        self,
        model: str,
        x: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        layer: SupportsIndex | None = None,
        datatype: DatatypeLike | None = None,
        timeout_s: float | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> Result:
        """Runs a model: many tasks may wait here at once, and their requests share the call.

        Arguments are as for ``Client.infer``.

        Raises:
            InferenceError: There is no answer; its code is UNKNOWN where the server does not tell, since the
                protocol's stream carries only a text.
            TypeError, ValueError: As for ``Client.infer``.
            RuntimeError: The stream is closed, or belongs to the process that this one was forked from.
        """
        self._transport.maker.check()
        if self._closed:
            raise RuntimeError("the stream is closed")
        options = InferOptions(outputs, layer, datatype, parameters or {})
        deadline = self._transport.deadline(timeout_s)
        steps = self._inference.infer(model, x, options)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight.add(answered)
        try:
            return await run(steps, lambda call: self._answer_to(call, deadline))
        finally:
            self._in_flight.discard(answered)
            answered.set_result(None)

    async def close(self, *, wait: bool = True) -> None:
        """Ends the stream, after the answers still due, each by its deadline, or, where ``wait`` is False, at once."""
        self._closed = True
        if not self._transport.maker.is_here:
            return
        if wait and self._in_flight:
            # Each ends by its own deadline.
            await asyncio.wait(self._in_flight)
        connections = self._connections.take_all()
        try:
            for connection in connections:
                await (connection.finish() if wait else connection.cancel())
        except BaseException:
            # Nobody else has them any more.
            for connection in connections:
                connection.abandon()
            raise

    async def _answer_to(self, call: Call, deadline: Deadline) -> Message | InferenceError:
        if call.rpc is not MODEL_INFER:
            return await self._transport.answer_to(call, deadline)
        assert isinstance(call.request, pb.ModelInferRequest)
        if deadline.has_passed:
            # Looking up and registering took it all: a request sent now might even be answered.
            return too_late(deadline.timeout_s)
        return await self._open().answer_to(call.request, deadline)

    def _open(self) -> AioConnection:
        if (connection := self._connections.usable()) is not None:
            return connection
        # Of the requests that were in flight when the stream was closed, one has to be sent again.
        if self._closed:
            raise broken(grpc.StatusCode.CANCELLED, "the client closed it")
        return self._connections.opened(AioConnection(self._transport))
