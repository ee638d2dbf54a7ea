"""Many requests in flight on one call: the asyncio client's side of ModelStreamInfer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from gatefuse.messages import InferenceError, Result
from gatefuse.question import Question
from gatefuse.transport.asynchronous import AioTransport
from gatefuse.transport.pending import Pending, broken, settle
from gatefuse.transport.rpcs import MODEL_STREAM_INFER
from gatefuse_protos import open_inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: asyncio.Future[Result]
    question: Question


class AioConnection:
    """One call of ModelStreamInfer: requests go out as they are sent, and one task hands out the answers."""

    def __init__(self, transport: AioTransport) -> None:
        """Opens the call on the transport's next endpoint."""
        self._transport = transport
        self._pending: Pending[_Waiter] = Pending()
        self._requests: asyncio.Queue[pb.ModelInferRequest | None] = asyncio.Queue()
        self._call, self._endpoint = transport.stream(MODEL_STREAM_INFER, self._outgoing())
        self._reader = asyncio.create_task(self._read())

    @property
    def ended(self) -> bool:
        """True when no more requests can be sent."""
        return self._pending.ended

    def send(self, question: Question) -> asyncio.Future[Result]:
        """Sends a request, whose id is the connection's to choose; it must not have ended."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        question.request.id = self._pending.add(_Waiter(future, question))
        self._requests.put_nowait(question.request)
        return future

    async def finish(self, timeout_s: float) -> None:
        """Says that there are no more requests, and waits for the answers that are still due."""
        self._requests.put_nowait(None)
        futures = [waiter.future for waiter in self._pending.waiters()]
        due = [future for future in futures if not future.done()]
        if len(due) == len(futures):
            await asyncio.wait([self._reader], timeout=timeout_s)
        elif due:
            # The server would not end the call before it has answered those, too, who gave up waiting.
            await asyncio.wait(due, timeout=timeout_s)
        await self.cancel()

    async def cancel(self) -> None:
        """Ends the call; those who still wait are told that it was cancelled."""
        self._call.cancel()
        await self._reader

    async def _outgoing(self) -> AsyncIterator[pb.ModelInferRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        error = broken(grpc.StatusCode.UNAVAILABLE, "the server closed it")
        try:
            async for response in self._call:
                self._transport.answered(self._endpoint)
                self._hand_out(response)
        except grpc.aio.AioRpcError as failure:
            self._transport.stream_failed(self._endpoint, failure)
            error = broken(failure.code(), failure.details())
        except asyncio.CancelledError:
            # grpc.aio raises this in the reader of a call that was cancelled, by us.
            error = broken(grpc.StatusCode.CANCELLED, "the client closed it")
        finally:
            self._requests.put_nowait(None)
            for waiter in self._pending.end():
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def _hand_out(self, response: pb.ModelStreamInferResponse) -> None:
        waiter = self._pending.take(response.infer_response.id)
        if waiter is None or waiter.future.done():
            return
        settle(waiter.future, waiter.question, response)


class AioStream:
    """Requests that share one call; answers come as they are ready, in any order.

    A stream that broke is opened again by the next request, on another endpoint if there is one; requests that were
    in flight then fail with InferenceError.
    """

    def __init__(
        self,
        transport: AioTransport,
        ask: Callable[..., Awaitable[Question]],
    ) -> None:
        """``ask`` makes a question of ``infer``'s arguments."""
        self._transport = transport
        self._ask = ask
        self._connection: AioConnection | None = None
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
        self, model: str, x: Any, *, timeout_s: float | None = None, **options: Any
    ) -> Result:
        """Runs a model: many tasks may wait here at once, and their requests share the call.

        Args:
            model: The model's name.
            x: As for ``Client.infer``.
            timeout_s: Seconds to wait for the answer; None for the client's own.
            **options: As for ``Client.infer``.

        Raises:
            InferenceError: There is no answer; its code is UNKNOWN where the server does not tell, since the
                protocol's stream carries only a text.
            TypeError, ValueError: As for ``Client.infer``.
            RuntimeError: The stream is closed.
        """
        question = await self._ask(model, x, **options)
        wait_s = self._transport.timeout_s if timeout_s is None else timeout_s
        try:
            return await asyncio.wait_for(self._open().send(question), wait_s)
        except TimeoutError:
            text = f"no answer on the stream within {wait_s} s"
            raise InferenceError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None

    async def close(self, *, wait: bool = True) -> None:
        """Ends the stream, after the answers still due or, where ``wait`` is False, at once."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if wait:
            await connection.finish(self._transport.timeout_s)
        else:
            await connection.cancel()

    def _open(self) -> AioConnection:
        if self._closed:
            raise RuntimeError("the stream is closed")
        if self._connection is None or self._connection.ended:
            self._connection = AioConnection(self._transport)
        return self._connection
