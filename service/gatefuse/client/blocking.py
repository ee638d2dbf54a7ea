"""The blocking client. Needs grpcio, protobuf and numpy; knows no torch, but takes and gives its tensors.

with gatefuse.Client("localhost:8001") as client:
    result = client.infer("llama-ffn", hidden_states, layer=3)
    result.output, result.cost.kernel_launches
    client.infer("silu-gate", {"g": gate, "u": up}).outputs["y"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, SupportsIndex

import grpc

from gatefuse.client.arrays import Arrays, DatatypeLike
from gatefuse.client.memory import SharedMemory
from gatefuse.client.messages import Cost, InferenceError, ParameterValue, Result
from gatefuse.client.metadata import ModelMetadata, ServerMetadata, model_metadata, server_metadata
from gatefuse.client.prepared import InferOptions
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.deadline import Deadline
from gatefuse.client.transport.inference import Inference
from gatefuse.client.transport.retry import RetryPolicy, checked_policy
from gatefuse.client.transport.sharing import UNREGISTER_S, Sharing
from gatefuse.client.transport.stream import Stream
from gatefuse_protos import open_inference_pb2 as pb

__all__ = ["Client", "Cost", "InferenceError", "ModelMetadata", "Result", "ServerMetadata"]

DEFAULT_TIMEOUT_S = 30.0


class Client:
    """A connection to a server, or to each of several; usable from several threads at once.

    Every call ends after ``timeout_s``: it is the gRPC deadline, which the server keeps too. A call that the server
    cannot take now is tried again while the deadline allows, on another endpoint at once, on the same one after a
    wait. Calls raise InferenceError if they are not answered.

    A forked child may use its copy if no call and no stream was open at the fork: gRPC does not survive that. A process
    that ``spawn`` starts makes its own client.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
        retry: RetryPolicy | None = None,
        shared_memory: SharedMemory = "auto",
    ) -> None:
        """Connects at the first call.

        Args:
            url: ``HOST:PORT`` without a scheme, or any other gRPC target, such as ``unix:PATH``; or several, which take
                calls in turn as long as they answer.
            timeout_s: Seconds that a call may take unless it says otherwise.
            credentials: For TLS; None for plain text.
            retry: How calls that were refused are tried again; None for ``RetryPolicy()``, which goes on while the
                deadline allows, and ``gatefuse.NO_RETRY`` for asking each endpoint once.
            shared_memory: Whether rows go through memory that the server shares: ``auto`` where they are many, the
                server is on this host, has no other endpoint and allows it; ``on`` always, or the call fails; ``off``.
                A request whose memory the server has lost, or whose model was changed, is sent again in a message.

        Raises:
            TypeError: ``url`` is no text, ``timeout_s`` no number, or ``retry`` no policy.
            ValueError: ``url`` is none, ``timeout_s`` not positive or not finite, or the rest cannot be together.
        """
        self._transport = Transport(url, credentials, timeout_s, checked_policy(retry))
        self._sharing = Sharing(shared_memory, self._transport.endpoints)
        self._inference = Inference(self._sharing)

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
        """Closes the connection; calls still open, and any later one, end with CANCELLED.

        Where rows went through memory, the server is told that it may let go of it, which takes a second at the most.
        """
        self._transport.close()
        self._sharing.close()
        if self._sharing.has_dropped:
            # No request is open any more that could miss its memory.
            transport = self._transport.anew()
            transport.run(self._sharing.unregister(), Deadline(UNREGISTER_S))
            transport.close()

    @property
    def timeout_s(self) -> float:
        """Seconds that a call may take unless it says otherwise."""
        return self._transport.timeout_s

    def is_live(self) -> bool:
        """Whether a server answers and says that it lives."""
        try:
            request = pb.ServerLiveRequest()
            return self._transport.call(rpcs.SERVER_LIVE, request, retry=False).live
        except InferenceError as error:
            return error.false_if_unanswered()

    def is_ready(self) -> bool:
        """Whether a server answers and all its models are ready."""
        try:
            request = pb.ServerReadyRequest()
            return self._transport.call(rpcs.SERVER_READY, request, retry=False).ready
        except InferenceError as error:
            return error.false_if_unanswered()

    def metadata(self) -> ServerMetadata:
        """Returns the server's description."""
        return server_metadata(
            self._transport.call(rpcs.SERVER_METADATA, pb.ServerMetadataRequest())
        )

    def models(self) -> tuple[str, ...]:
        """Returns the names of the server's models, ready or not."""
        index = self._transport.call(rpcs.REPOSITORY_INDEX, pb.RepositoryIndexRequest())
        return tuple(model.name for model in index.models)

    def model_ready(self, name: str) -> bool:
        """Whether the model is ready. An unknown model is an InferenceError with NOT_FOUND."""
        try:
            request = pb.ModelReadyRequest(name=name)
            return self._transport.call(rpcs.MODEL_READY, request, retry=False).ready
        except InferenceError as error:
            return error.false_if_unanswered()

    def model_metadata(self, name: str) -> ModelMetadata:
        """Returns the model's description."""
        request = pb.ModelMetadataRequest(name=name)
        return model_metadata(self._transport.call(rpcs.MODEL_METADATA, request))

    def infer(
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
        """Runs a model on the rows of ``x``.

        Args:
            model: The model's name.
            x: [..., columns] float32, float16, float64 or bfloat16, of numpy, ml_dtypes or torch: all but the last
                dimension are rows. For a model of several inputs such arrays by the inputs' names, all of one shape.
            outputs: Which of the model's outputs to answer; None for all.
            layer: Which layer of the model; None for the server's choice.
            datatype: FP32, FP16 or BF16, or the dtype of one: what travels, rounded to the nearest. None sends the
                arrays' own type, and FP32 where they have several.
            timeout_s: Seconds that the call may take, look-ups and retries included; None for the client's own.
            parameters: Any other parameters of the protocol's requests, such as ``{"priority": 1}``.

        Returns:
            The outputs, of the kind, shape and dtype of ``x`` (float32 for float64), and their cost.

        Raises:
            InferenceError: The call was not answered; its code is CANCELLED if the client is closed.
            TypeError: ``x`` is no array of floats, or ``outputs`` one string.
            ValueError: The datatype is unknown, ``x`` is a scalar, the shapes differ, or ``timeout_s`` is not positive.
        """
        options = InferOptions(outputs, layer, datatype, parameters or {})
        deadline = self._transport.deadline(timeout_s)
        return self._transport.run(self._inference.infer(model, x, options), deadline)

    def stream(self) -> Stream:
        """Returns a stream, to be used as a context: many requests in flight on one call.

        with client.stream() as stream:
            futures = [stream.infer("llama-ffn", x, layer=3) for x in batches]
            results = [future.result() for future in futures]
        """
        return Stream(self._transport, self._inference)
