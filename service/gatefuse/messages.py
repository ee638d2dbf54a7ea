"""Requests, answers and errors as both clients, the torch module and the load test see them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from gatefuse.wire import Datatype, decode
from gatefuse_protos import open_inference_pb2 as pb

# A batch of hidden states is easily more than gRPC's default of 4 MiB; the server has its own
# limit, in rows. A pool of its own gives each channel its own connection, where gRPC would share
# one between all channels to the same address.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class InferenceError(Exception):
    """A call that was not answered.

    Attributes:
        code: The gRPC status, for example ``grpc.StatusCode.NOT_FOUND``.
        details: The server's text, or gRPC's own if no server answered.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        """Keeps both; the exception's text holds both."""
        super().__init__(code, details)
        self.code = code
        self.details = details

    def __str__(self) -> str:
        """Returns the status' name and the text."""
        return f"{self.code.name}: {self.details}"

    @classmethod
    def of(cls, error: Any) -> InferenceError:
        """Makes one from what grpc or grpc.aio raised."""
        return cls(error.code(), error.details() or "no details")


@dataclass(frozen=True, slots=True)
class Cost:
    """What the device batches that a request rode in cost, from the server's own accounting.

    A request shares its batches with others: ``share`` is its part. All zero if the server does not
    tell.
    """

    queue_us: int = 0
    compute_us: int = 0
    batch_rows: int = 0
    kernel_launches: int = 0
    bytes_moved: int = 0
    backend: str = ""

    def share(self, rows: int) -> float:
        """Returns the part of the batches that a request of ``rows`` rows was: 0 to 1."""
        return rows / self.batch_rows if self.batch_rows else 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """An answer: ``output`` has the shape of the input, and its dtype (float32 for float64)."""

    output: NDArray[Any]
    cost: Cost


@dataclass(frozen=True, slots=True)
class RawResult:
    """An answer as it travelled: packed elements of ``datatype``."""

    content: bytes
    datatype: Datatype
    cost: Cost


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


@dataclass(frozen=True, slots=True)
class Rows:
    """The packed rows of one request: ``shape`` is [M, columns]."""

    content: bytes
    shape: tuple[int, int]
    datatype: Datatype


def method(name: str) -> str:
    """Returns the path of one of the protocol's methods."""
    return f"/{pb.SERVICE_NAME}/{name}"


def flat_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns [M, columns] for rows with any leading dimensions; one dimension is one row.

    Raises ValueError for a scalar.
    """
    if not shape:
        raise ValueError("a scalar has no rows: pass an array of shape [..., columns]")
    return math.prod(shape[:-1]), shape[-1]


def infer_request(
    model: str, input_name: str, rows: Rows, layer: int | None = None
) -> pb.ModelInferRequest:
    """Returns the request that runs ``model`` on ``rows``."""
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[rows.content])
    request.inputs.add(name=input_name, datatype=rows.datatype.value, shape=rows.shape)
    if layer is not None:
        request.parameters["layer"].int64_param = layer
    return request


def raw_result(response: pb.ModelInferResponse, shape: tuple[int, int]) -> RawResult:
    """Returns the only output of an answer for rows of ``shape``.

    Raises InferenceError with INTERNAL if the answer is not one packed tensor of that shape.
    """
    if len(response.outputs) != 1 or len(response.raw_output_contents) != 1:
        raise InferenceError(
            grpc.StatusCode.INTERNAL, "the answer is not one tensor of raw contents"
        )
    output = response.outputs[0]
    if tuple(output.shape) != shape:
        raise InferenceError(
            grpc.StatusCode.INTERNAL,
            f"the answer has shape {list(output.shape)}, not {list(shape)}",
        )
    try:
        datatype = Datatype.parse(output.datatype)
    except ValueError as error:
        raise InferenceError(grpc.StatusCode.INTERNAL, f"the answer's {error}") from error
    content = response.raw_output_contents[0]
    if len(content) != shape[0] * shape[1] * datatype.itemsize:
        raise InferenceError(
            grpc.StatusCode.INTERNAL,
            f"the answer's {len(content)} bytes are not {list(shape)} {datatype}",
        )
    return RawResult(content, datatype, cost_of(response))


def cost_of(response: pb.ModelInferResponse) -> Cost:
    """Returns what the response's parameters say about the request's cost."""
    parameters = response.parameters
    if "batch_rows" not in parameters:
        return Cost()
    return Cost(
        queue_us=parameters["queue_us"].int64_param,
        compute_us=parameters["compute_us"].int64_param,
        batch_rows=parameters["batch_rows"].int64_param,
        kernel_launches=parameters["kernel_launches"].int64_param,
        bytes_moved=parameters["bytes_moved"].int64_param,
        backend=parameters["backend"].string_param,
    )


def output_array(raw: RawResult, like: NDArray[Any]) -> NDArray[Any]:
    """Returns a fresh, writable array of the shape and dtype of ``like`` (float32 for float64)."""
    if raw.datatype is Datatype.BF16 and like.dtype.name == "bfloat16":
        return np.frombuffer(raw.content, like.dtype).reshape(like.shape).copy()
    decoded = decode(raw.content, raw.datatype, like.shape)
    dtype = np.dtype(np.float32) if like.dtype == np.float64 else like.dtype
    # BF16 is decoded into fresh memory; the others are still the message's own bytes.
    return decoded.astype(dtype, copy=not decoded.flags.writeable)


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
        raise InferenceError(
            grpc.StatusCode.UNIMPLEMENTED,
            f"model {metadata.name!r} takes {len(metadata.inputs)} tensors; this client sends one",
        )
    return metadata.inputs[0].name
