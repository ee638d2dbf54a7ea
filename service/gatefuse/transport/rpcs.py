"""The methods that the clients call: their paths and how their messages travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from gatefuse.messages import method
from gatefuse_protos import open_inference_pb2 as pb

_Response = TypeVar("_Response", bound=Message)


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


def serialize(message: Message) -> bytes:
    """Returns a message as it travels."""
    return message.SerializeToString()


def targets(url: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the endpoints of one target or several. Raises ValueError for none."""
    found = (url,) if isinstance(url, str) else tuple(url)
    if not found:
        raise ValueError("no endpoint: pass HOST:PORT, or several")
    return found
