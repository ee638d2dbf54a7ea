"""How a call ends, whatever its method: one status, one safe text, one count."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from gatefuse import metrics
from gatefuse.errors import DeadlineExceeded, InvalidRequest, ServiceError, Shed
from gatefuse.frontend.requests.job import Left
from gatefuse.frontend.telemetry import Exchange, Observer
from gatefuse.protocol_words import PUSHBACK_KEY

log = logging.getLogger(__name__)

# gRPC's timer and ours do not tick together: what is cancelled this close to a deadline is late.
DEADLINE_SLACK_S = 0.01
# A text travels in a header, each byte that is not ASCII in three, and gRPC gives up a status whose headers take 8 KiB.
MAX_TEXT = 500

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Request, Context], Awaitable[Response]]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Followed = Callable[[Request, Context, Exchange], Awaitable[Response]]

_NOBODY = Observer()  # listens to calls that are no inference


class Topic(Protocol):
    """Some methods of the protocol that belong together."""

    @property
    def extensions(self) -> tuple[str, ...]:
        """The protocol's names for what is on, for server metadata."""

    def methods(self) -> Mapping[str, Handler]:
        """The handler of each method, by its name."""


def unary(
    name: str, parse: Callable[[bytes], Request], method: Method[Request, Response]
) -> Handler:
    """The handler of a method with one request and one response: a message, or one that is serialized already."""
    return followed(name, parse, lambda request, context, _: method(request, context), _NOBODY)


def followed(
    name: str,
    parse: Callable[[bytes], Request],
    method: Followed[Request, Response],
    observer: Observer,
) -> Handler:
    """The same for a method whose requests `observer` follows."""
    handler: Handler = grpc.unary_unary_rpc_method_handler(
        _observed(name, parse, method, observer), response_serializer=_serialize
    )
    return handler


def parsed(parse: Callable[[bytes], Request], message: bytes) -> Request:
    """The message of a request. gRPC's own parsing would answer UNKNOWN, with the names of our classes.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return parse(message)
    except DecodeError as error:
        raise InvalidRequest("mismatch", "the request is no message of this method") from error


def remaining_s(context: Context) -> float | None:
    """What is left of the client's deadline; None when it set none, which grpc's own types leave out."""
    return context.time_remaining()


def is_late(context: Context) -> bool:
    """True for a call that was cancelled because its deadline passed, not because its client left."""
    left_s = remaining_s(context)
    return left_s is not None and left_s <= DEADLINE_SLACK_S


def refusal(error: Exception, method: str) -> tuple[grpc.StatusCode, str, str]:
    """The status, the text and the outcome label of a request that failed; counts it by its reason."""
    if isinstance(error, ServiceError):
        # The frames it went through hold the request, whose future may hold it in turn.
        error.__traceback__ = None
        return error.status, _short(str(error)), counted(error, method)
    log.error("%s failed", method, exc_info=error)
    return grpc.StatusCode.INTERNAL, "internal error", "server"


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def counted(error: ServiceError, method: str) -> str:
    """Counts a refusal of a method's request by its reason; returns the outcome label."""
    if isinstance(error, InvalidRequest):
        metrics.invalid(error.reason)
        return "client"
    if isinstance(error, Shed):
        metrics.shed(method, error.reason)
        return "shed"
    return "server"


def reason_of(error: Exception) -> str:
    """Why a request failed, as metrics label it."""
    return error.reason if isinstance(error, ServiceError) else "internal"


def cancelled(method: str, phase: str, *, late: bool) -> tuple[str, str, str]:
    """Counts a call that was cancelled, by its client or at its deadline; returns code, outcome label and reason."""
    if late:
        error = DeadlineExceeded()
        return "DEADLINE_EXCEEDED", counted(error, method), error.reason
    metrics.caller_left(phase)
    return "CANCELLED", "client", ""


def push_back(error: Exception) -> tuple[tuple[str, str], ...]:
    """What tells the client when to ask again, where the error says."""
    if isinstance(error, ServiceError) and error.pushback_ms is not None:
        return ((PUSHBACK_KEY, str(error.pushback_ms)),)
    return ()


async def abort(context: Context, status: grpc.StatusCode, text: str) -> NoReturn:
    """Ends a call with an error."""
    await context.abort(status, text)
    raise AssertionError("abort returns by raising")


def _serialize(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _observed(
    name: str,
    parse: Callable[[bytes], Request],
    method: Followed[Request, Response],
    observer: Observer,
) -> Callable[[bytes, Context], Awaitable[Response]]:
    """Wraps a method so that every way it can end is one status, one safe text and one count."""
    series = metrics.RpcMetrics(name)

    async def call(message: bytes, context: Context) -> Response:
        exchange = observer.began(name, context.invocation_metadata())
        series.started()
        code, outcome, reason = "UNKNOWN", "server", ""
        try:
            try:
                response = await method(parsed(parse, message), context, exchange)
            except Exception as error:
                status, text, outcome = refusal(error, name)
                reason = reason_of(error)
                context.set_trailing_metadata(
                    (*exchange.trailer(answered=False), *push_back(error))
                )
            else:
                code, outcome = "OK", "ok"
                if trailer := exchange.trailer(answered=True):
                    context.set_trailing_metadata(trailer)
                return response
            code = status.name
            # gRPC keeps what `abort` raises until the garbage collector comes: not the message with it.
            del message
            await abort(context, status, text)
        except asyncio.CancelledError as error:
            # gRPC cancels a handler when the client leaves and when the client's deadline passes. One that is being
            # told its error has been counted by it.
            if code == "UNKNOWN":
                phase = error.phase if isinstance(error, Left) else "executing"
                code, outcome, reason = cancelled(name, phase, late=is_late(context))
            raise
        finally:
            observer.ended(exchange, code, outcome, reason)
            series.finished(code, outcome, exchange.duration_s)

    return call
