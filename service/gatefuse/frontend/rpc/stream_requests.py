"""The requests of one stream, from the message to the answer; knows nothing of how either travels."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from gatefuse.errors import ServiceError
from gatefuse.frontend.requests import answers, codec, raw_contents
from gatefuse.frontend.requests.job import Job
from gatefuse.frontend.rpc.call import cancelled, parsed, reason_of, refusal
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.frontend.rpc.infer import checked
from gatefuse.frontend.telemetry import Exchange, Metadata
from gatefuse.metrics import RpcMetrics
from gatefuse.trace_context import TRACEPARENT, TRACESTATE

METHOD = "ModelStreamInfer"
# What one stream may have the server hold: requests that are not answered, or whose answers the client has not taken.
# At either bound no more is read, and gRPC's flow control stops the client.
MAX_REQUESTS = 256
MAX_BYTES = 64 * 2**20


class _Ask:
    """One request on its way."""

    __slots__ = ("exchange", "message_bytes", "request_id")

    def __init__(self, message_bytes: int, exchange: Exchange) -> None:
        self.message_bytes = message_bytes
        self.exchange = exchange
        self.request_id = ""  # as its client wrote it


class StreamRequests:
    """Takes messages and gives answers, in the order in which they are ready. No task is made for a request."""

    def __init__(
        self,
        catalogue: Catalogue,
        series: RpcMetrics,
        left_s: Callable[[], float | None],
        ends_at_error: bool,
        metadata: Metadata = (),
    ) -> None:
        """`left_s` is what is left of the stream's deadline; with `ends_at_error` the first failure ends the stream.

        `metadata` came with the stream: its requests belong to the trace that it names.
        """
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self._catalogue = catalogue
        self._dispatcher = catalogue.dispatcher
        self._observer = catalogue.observer
        self._series = series
        self._left_s = left_s
        self._ends_at_error = ends_at_error
        self._metadata = tuple(each for each in metadata if each[0] in (TRACEPARENT, TRACESTATE))
        self._loop = asyncio.get_running_loop()
        self._asked: set[_Ask] = set()
        self._answers: deque[tuple[bytes, int]] = deque()  # and the bytes of the question
        self._written_bytes = 0  # of the question whose answer is being written
        self._held_requests = 0
        self._held_bytes = 0
        self._ended = False
        self._answer_there: asyncio.Future[None] | None = None
        self._room_there: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        return f"StreamRequests(asked={len(self._asked)}, answered={len(self._answers)})"

    async def room(self) -> bool:
        """Waits until another message may be taken; False when none will be."""
        while self._full and not self._ended:
            self._room_there = self._loop.create_future()
            await self._room_there
        return not self._ended

    def take(self, message: bytes) -> None:
        """Takes a request, and answers it if it is refused."""
        exchange = self._observer.began(METHOD, self._metadata)
        ask = _Ask(len(message), exchange)
        self._asked.add(ask)
        self._held_requests += 1
        self._held_bytes += ask.message_bytes
        self._series.started()
        try:
            request, raw = parsed(raw_contents.parse, message)
            exchange.asks(request)
            ask.request_id = request.id[: codec.MAX_ID_LENGTH]
            asked = checked(
                *(self._catalogue, (request, raw), self._left_s(), exchange.started_s),
                answers.STREAM_FRAME_BYTES,
            )
            job = self._dispatcher.submit(*asked, exchange)
        except Exception as error:
            self._refuse(ask, error)
            return
        if job.future.done():
            self._done(ask, job, job.future)
        else:
            job.future.add_done_callback(partial(self._done, ask, job))

    async def next_answer(self) -> bytes | None:
        """The next answer, to be written before the next is asked for; None when the stream is at its end."""
        while not self._answers:
            if self._ended and not self._asked:
                return None
            self._answer_there = self._loop.create_future()
            await self._answer_there
        answer, self._written_bytes = self._answers.popleft()
        return answer

    def written(self) -> None:
        """The last answer is on its way to the client: there is room for another request."""
        self._held_requests -= 1
        self._held_bytes -= self._written_bytes
        if not self._full:
            _wake(self._room_there)

    def end(self, error: ServiceError | None = None) -> None:
        """No more requests come; with an error the stream ends with it, after the answers that are due."""
        self._ended = True
        if error is not None and self.failure is None:
            self.failure = error.status, str(error)
        _wake(self._answer_there)
        _wake(self._room_there)

    def abandon(self, *, late: bool = False) -> None:
        """The stream is over, because its deadline passed or for another reason: takes out what was not answered."""
        self._ended = True
        _wake(self._room_there)
        for ask in tuple(self._asked):
            exchange = ask.exchange
            phase = self._dispatcher.abandon(exchange.job) if exchange.job is not None else "queued"
            self._close(ask, *cancelled(METHOD, phase, late=late))
            self._dispatcher.statistics.failed(exchange.model_name, exchange.duration_s)
        self._answers.clear()

    @property
    def _full(self) -> bool:
        # A message above MAX_BYTES is taken when it is the only one.
        return self._held_requests >= MAX_REQUESTS or self._held_bytes >= MAX_BYTES

    def _done(self, ask: _Ask, job: Job, _: "asyncio.Future[Any]") -> None:
        if ask not in self._asked:
            return  # it was abandoned
        try:
            outputs = self._dispatcher.take_answer(job)
            ask.exchange.encode_s = time.monotonic()
            answer = answers.encode_streamed(job.request, outputs, job.cost)
        except Exception as error:
            self._refuse(ask, error)
            return
        self._close(ask, "OK", "ok")
        self._answer(ask, answer)

    def _refuse(self, ask: _Ask, error: Exception) -> None:
        status, text, outcome = refusal(error, METHOD)
        self._close(ask, status.name, outcome, reason_of(error))
        self._dispatcher.statistics.failed(ask.exchange.model_name, ask.exchange.duration_s)
        if not self._ends_at_error:
            self._answer(ask, answers.encode_streamed_error(ask.request_id, status.name, text))
        elif self.failure is None:
            self.failure = status, text
            self.abandon()
            _wake(self._answer_there)

    def _close(self, ask: _Ask, code: str, outcome: str, reason: str = "") -> None:
        self._asked.discard(ask)
        self._observer.ended(ask.exchange, code, outcome, reason)
        self._series.finished(code, outcome, ask.exchange.duration_s)

    def _answer(self, ask: _Ask, answer: bytes) -> None:
        self._answers.append((answer, ask.message_bytes))
        _wake(self._answer_there)


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
