"""The RPC methods of the Open Inference Protocol v2, and how each one ends: status, text, metrics."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from gatefuse import __version__, codec, metrics, raw_contents
from gatefuse.dispatcher import DEADLINE_SLACK_S, Dispatcher
from gatefuse.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NoReplica,
    NotFound,
    ServiceError,
    Shed,
)
from gatefuse.link import ServedModel
from gatefuse_protos import open_inference_pb2 as pb

log = logging.getLogger(__name__)

SERVER_NAME = "gatefuse"

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Request, Context], Awaitable[Response]]
Handler = Callable[[bytes, Context], Awaitable[Response]]


class Servicer:
    """Answers every method of `inference.GRPCInferenceService` that this server has."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        default_timeouts_s: Mapping[str, float],
        max_message_bytes: int,
    ) -> None:
        """`default_timeouts_s` names every configured model; it holds for calls without a deadline."""
        self._dispatcher = dispatcher
        self._max_message_bytes = max_message_bytes
        self._default_timeouts_s = default_timeouts_s
        self.leaving = False  # set before a drain: no longer ready, still answering

    @property
    def ready(self) -> bool:
        """True when every configured model has a worker and the server is not on its way out."""
        models = self._default_timeouts_s
        return not self._going and all(map(self._dispatcher.is_ready, models))

    @property
    def _going(self) -> bool:
        return self.leaving or self._dispatcher.draining

    def handler(self) -> grpc.GenericRpcHandler:
        """What to register with the server."""
        methods: dict[str, tuple[Method[Any, Any], Callable[[bytes], Any]]] = {
            "ServerLive": (self._server_live, pb.ServerLiveRequest.FromString),
            "ServerReady": (self._server_ready, pb.ServerReadyRequest.FromString),
            "ServerMetadata": (self._server_metadata, pb.ServerMetadataRequest.FromString),
            "ModelReady": (self._model_ready, pb.ModelReadyRequest.FromString),
            "ModelMetadata": (self._model_metadata, pb.ModelMetadataRequest.FromString),
            "ModelInfer": (self._model_infer, raw_contents.parse),
            "RepositoryIndex": (self._repository_index, pb.RepositoryIndexRequest.FromString),
        }
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                _observed(name, parse, method), response_serializer=_serialize
            )
            for name, (method, parse) in methods.items()
        }
        return grpc.method_handlers_generic_handler(pb.SERVICE_NAME, handlers)

    async def _server_live(
        self, request: pb.ServerLiveRequest, context: Context
    ) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(
        self, request: pb.ServerReadyRequest, context: Context
    ) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self.ready)

    async def _server_metadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name=SERVER_NAME, version=__version__, extensions=["binary_tensor_data", "parameters"]
        )

    async def _model_ready(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        self._find(request.name, request.version)
        return pb.ModelReadyResponse(
            ready=not self._going and self._dispatcher.is_ready(request.name)
        )

    async def _model_metadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        self._find(request.name, request.version)
        return codec.metadata(self._loaded(request.name, request.version))

    async def _model_infer(self, parsed: raw_contents.Parsed, context: Context) -> bytes:
        started_s = time.monotonic()
        request, raw = parsed
        models = self._dispatcher.models
        if request.model_name not in models:
            self._find(request.model_name, request.model_version)
            self._loaded(request.model_name, request.model_version)
        infer = codec.decode(request, models, raw)
        codec.check_answer(infer, self._max_message_bytes)
        remaining_s = _remaining_s(context)
        if remaining_s is None:
            remaining_s = self._default_timeouts_s[infer.model.name]
        outputs, cost = await self._dispatcher.infer(infer, started_s + remaining_s)
        return codec.encode(infer, outputs, cost)

    async def _repository_index(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        if request.repository_name:
            raise InvalidRequest("model", "there is one repository: leave repository_name empty")
        response = pb.RepositoryIndexResponse()
        for name in self._default_timeouts_s:
            state, reason = self._state(name)
            if state == "READY" or not request.ready:
                response.models.add(name=name, version=codec.VERSION, state=state, reason=reason)
        return response

    def _state(self, name: str) -> tuple[str, str]:
        if self._going:
            return "UNAVAILABLE", "the server is draining"
        if self._dispatcher.is_ready(name):
            return "READY", ""
        if name in self._dispatcher.models:
            return "UNAVAILABLE", "no worker is ready for the model"
        return "LOADING", "no worker has loaded the model yet"

    def _find(self, name: str, version: str) -> None:
        """Raises NotFound for a model or version that is not configured, whether or not one is loaded yet."""
        codec.check_name(name, version)
        if name not in self._default_timeouts_s:
            raise NotFound(f"no model is named '{name}'")
        codec.check_version(name, version)

    def _loaded(self, name: str, version: str) -> ServedModel:
        if name not in self._dispatcher.models:
            raise NoReplica(f"model '{name}' is still loading")
        return codec.find_model(self._dispatcher.models, name, version)


def _serialize(answer: Message | bytes) -> bytes:
    """ModelInfer's answers come serialized."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _parsed(parse: Callable[[bytes], Request], message: bytes) -> Request:
    """The message of a request. gRPC's own parsing would answer UNKNOWN, with the names of our classes."""
    try:
        return parse(message)
    except DecodeError as error:
        raise InvalidRequest("mismatch", "the request is no message of this method") from error


def _observed(
    name: str, parse: Callable[[bytes], Request], method: Method[Request, Response]
) -> Handler[Response]:
    """Wraps a method so that every way it can end is one status, one safe text and one count."""
    series = metrics.RpcMetrics(name)

    async def call(message: bytes, context: Context) -> Response:
        started_s = time.perf_counter()
        series.started()
        code, outcome = "UNKNOWN", "server"
        try:
            try:
                response = await method(_parsed(parse, message), context)
            except ServiceError as error:
                status, text, outcome = error.status, str(error), _count(error)
                # The frames it went through hold the request, whose future may hold it in turn.
                error.__traceback__ = None
            except Exception:
                log.exception("%s failed", name)
                status, text = grpc.StatusCode.INTERNAL, "internal error"
            else:
                code, outcome = "OK", "ok"
                return response
            code = status.name
            # gRPC keeps what `abort` raises until the garbage collector comes: not the message with it.
            del message
            await _abort(context, status, text)
        except asyncio.CancelledError:
            # gRPC cancels a handler when the client leaves and when the client's deadline passes.
            remaining_s = _remaining_s(context)
            late = remaining_s is not None and remaining_s <= DEADLINE_SLACK_S
            code, outcome = "CANCELLED", "client"
            if late:
                code, outcome = "DEADLINE_EXCEEDED", _count(DeadlineExceeded())
            raise
        finally:
            series.finished(code, outcome, time.perf_counter() - started_s)

    return call


def _remaining_s(context: Context) -> float | None:
    """What is left of the client's deadline; None when it set none, which grpc's own types leave out."""
    return context.time_remaining()


async def _abort(context: Context, status: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(status, text)
    raise AssertionError("abort returns by raising")


def _count(error: ServiceError) -> str:
    """Counts a refusal by its reason; returns the outcome label."""
    if isinstance(error, InvalidRequest):
        metrics.invalid(error.reason)
        return "client"
    if isinstance(error, Shed):
        metrics.shed(error.reason)
        return "shed"
    return "server"
