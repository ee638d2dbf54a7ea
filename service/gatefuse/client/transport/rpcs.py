"""The methods that the clients call, and calls as values: what to ask is decided apart from how it travels.

A function that needs answers on its way is a generator of ``Call``: whoever runs it makes each call and sends the
answer in, or throws the error in. So there is one of it for threads, asyncio, single calls and streams.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from gatefuse.client.messages import InferenceError, method
from gatefuse.client.transport.retry import OWN_DEADLINE
from gatefuse_protos import open_inference_pb2 as pb

_Response = TypeVar("_Response", bound=Message)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Rpc(Generic[_Response]):
    """One method; ``parse`` reads its answer."""

    path: str
    parse: Callable[[bytes], _Response]


SERVER_LIVE = Rpc(method("ServerLive"), pb.ServerLiveResponse.FromString)
SERVER_READY = Rpc(method("ServerReady"), pb.ServerReadyResponse.FromString)
SERVER_METADATA = Rpc(method("ServerMetadata"), pb.ServerMetadataResponse.FromString)
MODEL_READY = Rpc(method("ModelReady"), pb.ModelReadyResponse.FromString)
MODEL_METADATA = Rpc(method("ModelMetadata"), pb.ModelMetadataResponse.FromString)
MODEL_CONFIG = Rpc(method("ModelConfig"), pb.ModelConfigResponse.FromString)
MODEL_STATISTICS = Rpc(method("ModelStatistics"), pb.ModelStatisticsResponse.FromString)
REPOSITORY_INDEX = Rpc(method("RepositoryIndex"), pb.RepositoryIndexResponse.FromString)
MODEL_INFER = Rpc(method("ModelInfer"), pb.ModelInferResponse.FromString)
MODEL_STREAM_INFER = Rpc(method("ModelStreamInfer"), pb.ModelStreamInferResponse.FromString)

REGISTER_MEMORY = Rpc(
    method("SystemSharedMemoryRegister"), pb.SystemSharedMemoryRegisterResponse.FromString
)
UNREGISTER_MEMORY = Rpc(
    method("SystemSharedMemoryUnregister"), pb.SystemSharedMemoryUnregisterResponse.FromString
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call to be made.

    Attributes:
        rpc: The method.
        request: What is sent.
        at_most_s: How long it may take, in seconds, or what is left of the deadline where that is less.
        retry: Whether it is tried again.
        instead: Gives what to send when it is tried again though a server may have begun with it; None for the same.
    """

    rpc: Rpc[Any]
    request: Message
    at_most_s: float = float("inf")
    retry: bool = True
    instead: Callable[[], Message] | None = None


Steps: TypeAlias = Generator[Call, Any, _Result]
"""Calls one after the other, and what comes of their answers."""


def advance(steps: Steps[Any], answer: Message | InferenceError | None) -> Call:
    """Goes on to the next call: with None at the beginning, else with what came of the last one.

    Raises StopIteration with the result, or the steps' own error.
    """
    try:
        if isinstance(answer, InferenceError):
            return steps.throw(answer)
        return steps.send(answer)
    finally:
        answer = None  # an error's traceback holds this frame, and that one the request


def client_closed() -> InferenceError:
    """What a call gets that is made after its client was closed, or is open when it is closed."""
    return InferenceError(grpc.StatusCode.CANCELLED, "the client is closed")


NO_TIME_LEFT = (grpc.StatusCode.DEADLINE_EXCEEDED, OWN_DEADLINE)
"""Of a call whose deadline has passed before it was made: some other call took all the time."""


def status_of(error: Any) -> tuple[grpc.StatusCode, str]:
    """What a caller is told of what grpc or grpc.aio raised for a call that nobody here cancelled."""
    if error.code() is grpc.StatusCode.CANCELLED:
        return grpc.StatusCode.UNAVAILABLE, "the server ended the call"
    return error.code(), error.details() or "no details"


def serialize(message: Message) -> bytes:
    """Returns a message as it travels."""
    return message.SerializeToString()
