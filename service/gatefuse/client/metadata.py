"""What a server and its models say of themselves, as the clients and the load test see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import grpc

from gatefuse.client.messages import InferenceError
from gatefuse_protos import open_inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """A server's description of itself."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One tensor of a model; -1 in ``shape`` stands for any length."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model's description: its tensors; ``properties`` tells backend, dtype, layers and more."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


def server_metadata(response: pb.ServerMetadataResponse) -> ServerMetadata:
    """Reads a server's description."""
    return ServerMetadata(response.name, response.version, tuple(response.extensions))


def model_metadata(response: pb.ModelMetadataResponse) -> ModelMetadata:
    """Reads a model's description."""

    def tensors(
        messages: Iterable[pb.ModelMetadataResponse.TensorMetadata],
    ) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in messages)

    return ModelMetadata(
        name=response.name,
        versions=tuple(response.versions),
        platform=response.platform,
        inputs=tensors(response.inputs),
        outputs=tensors(response.outputs),
        properties=dict(response.properties),
    )


def single_input(metadata: ModelMetadata) -> str:
    """Returns the name of the model's only input; raises InferenceError if it is not the only."""
    if len(metadata.inputs) != 1:
        names = ", ".join(tensor.name for tensor in metadata.inputs)
        raise InferenceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"model {metadata.name!r} takes {len(metadata.inputs)} inputs ({names}): pass a mapping "
            "of their names to arrays",
        )
    return metadata.inputs[0].name
