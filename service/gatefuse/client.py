"""The blocking client. Needs grpcio, protobuf and numpy; knows no torch.

with Client("localhost:8001") as client:
    result = client.infer("llama-ffn", hidden_states, layer=3)
    result.output, result.cost.kernel_launches
    client.infer("silu-gate", {"g": gate, "u": up}).outputs["y"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from gatefuse.arrays import Arrays, packed, unpacked
from gatefuse.messages import (
    CHANNEL_OPTIONS,
    Cost,
    InferenceError,
    ModelMetadata,
    RawResult,
    Result,
    Rows,
    ServerMetadata,
    infer_request,
    method,
    model_metadata,
    raw_result,
    server_metadata,
    single_input,
)
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

__all__ = ["Client", "Cost", "InferenceError", "ModelMetadata", "Result", "ServerMetadata"]

DEFAULT_TIMEOUT_S = 30.0

_Response = TypeVar("_Response", bound=Message)


class Client:
    """One connection to a server; usable from several threads at once.

    Every call ends after ``timeout_s``: it is the gRPC deadline, which the server keeps too.
    Calls raise InferenceError if they are not answered.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Connects at the first call.

        Args:
            url: ``HOST:PORT``, or any other gRPC target.
            timeout_s: Seconds that a call may take unless it says otherwise.
            credentials: For TLS; None for plain text.
        """
        self._timeout_s = timeout_s
        self._channel = (
            grpc.insecure_channel(url, CHANNEL_OPTIONS)
            if credentials is None
            else grpc.secure_channel(url, credentials, CHANNEL_OPTIONS)
        )
        self._input_names: dict[str, str] = {}
        self._server_live = self._stub("ServerLive", pb.ServerLiveResponse)
        self._server_ready = self._stub("ServerReady", pb.ServerReadyResponse)
        self._server_metadata = self._stub("ServerMetadata", pb.ServerMetadataResponse)
        self._model_ready = self._stub("ModelReady", pb.ModelReadyResponse)
        self._model_metadata = self._stub("ModelMetadata", pb.ModelMetadataResponse)
        self._repository_index = self._stub("RepositoryIndex", pb.RepositoryIndexResponse)
        self._model_infer = self._stub("ModelInfer", pb.ModelInferResponse)

    def __enter__(self) -> Self:
        """Returns the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection; calls still open end with CANCELLED."""
        self._channel.close()

    def is_live(self) -> bool:
        """Whether a server answers and says that it lives."""
        try:
            return self._server_live(pb.ServerLiveRequest(), None).live
        except InferenceError as error:
            return _false_if_unavailable(error)

    def is_ready(self) -> bool:
        """Whether a server answers and all its models are ready."""
        try:
            return self._server_ready(pb.ServerReadyRequest(), None).ready
        except InferenceError as error:
            return _false_if_unavailable(error)

    def metadata(self) -> ServerMetadata:
        """Returns the server's description."""
        return server_metadata(self._server_metadata(pb.ServerMetadataRequest(), None))

    def models(self) -> tuple[str, ...]:
        """Returns the names of the server's models, ready or not."""
        index = self._repository_index(pb.RepositoryIndexRequest(), None)
        return tuple(model.name for model in index.models)

    def model_ready(self, name: str) -> bool:
        """Whether the model is ready. An unknown model is an InferenceError with NOT_FOUND."""
        try:
            return self._model_ready(pb.ModelReadyRequest(name=name), None).ready
        except InferenceError as error:
            return _false_if_unavailable(error)

    def model_metadata(self, name: str) -> ModelMetadata:
        """Returns the model's description."""
        return model_metadata(self._model_metadata(pb.ModelMetadataRequest(name=name), None))

    def infer(
        self,
        model: str,
        x: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        layer: int | None = None,
        datatype: Datatype | str | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Runs a model on the rows of ``x``.

        Args:
            model: The model's name.
            x: [..., columns] float32, float16, float64 or ml_dtypes' bfloat16: all but the last
                dimension are rows. For a model of several inputs such arrays by the inputs' names,
                all of one shape.
            outputs: Which of the model's outputs to answer; None for all.
            layer: Which layer of the model; None for the server's choice.
            datatype: FP32, FP16 or BF16: what travels. None sends the arrays' own type, and FP32
                where they have several.
            timeout_s: Seconds that the call may take; None for the client's own.

        Returns:
            The outputs, of the shape and dtype of ``x`` (float32 for float64), and their cost.

        Raises:
            InferenceError: The call was not answered.
            TypeError: ``x`` is no array of floats, or ``outputs`` one string.
            ValueError: The datatype is unknown, ``x`` is a scalar, or the shapes differ.
        """
        rows = packed(x, datatype)
        raw = self.infer_rows(model, rows, outputs=outputs, layer=layer, timeout_s=timeout_s)
        return unpacked(raw, x)

    def infer_rows(
        self,
        model: str,
        rows: Rows | Mapping[str, Rows],
        *,
        outputs: Sequence[str] | None = None,
        layer: int | None = None,
        timeout_s: float | None = None,
    ) -> RawResult:
        """Runs a model on rows that are packed already, and returns the packed answer."""
        if isinstance(rows, Rows):
            name = self._input_names.get(model)
            if name is None:
                name = self._input_names[model] = single_input(self.model_metadata(model))
            rows = {name: rows}
        request = infer_request(model, rows, layer, outputs)
        try:
            response = self._model_infer(request, timeout_s)
        except InferenceError as error:
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                # The server may have come back with another model of that name: ask again next
                # time.
                self._input_names.pop(model, None)
            raise
        return raw_result(response, next(iter(rows.values())).shape)

    def _stub(
        self, name: str, response: type[_Response]
    ) -> Callable[[Message, float | None], _Response]:
        call: grpc.UnaryUnaryMultiCallable[Message, _Response] = self._channel.unary_unary(
            method(name),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )

        def stub(request: Message, timeout_s: float | None) -> _Response:
            try:
                return call(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
            except grpc.RpcError as error:
                raise InferenceError.of(error) from error

        return stub


def _false_if_unavailable(error: InferenceError) -> bool:
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return False
    raise error
