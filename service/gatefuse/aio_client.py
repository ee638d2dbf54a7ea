"""The asyncio client: the same calls as ``gatefuse.client``, awaited.

async with gatefuse.aio.Client("localhost:8001") as client:
    result = await client.infer("llama-ffn", hidden_states, layer=3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import grpc

from gatefuse.arrays import Arrays, described
from gatefuse.client import DEFAULT_TIMEOUT_S
from gatefuse.client_memory import SharedMemory
from gatefuse.messages import InferenceError, ParameterValue, Result, Rows
from gatefuse.metadata import (
    ModelMetadata,
    ServerMetadata,
    model_metadata,
    server_metadata,
    single_input,
)
from gatefuse.question import Question, question
from gatefuse.transport import rpcs
from gatefuse.transport.aio_stream import AioStream
from gatefuse.transport.asynchronous import AioTransport
from gatefuse.transport.retry import RetryPolicy
from gatefuse.transport.sharing import AioSharing
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

__all__ = ["AioClient", "InferenceError"]


class AioClient:
    """A connection to a server, or to each of several, for the event loop that is running when it is made.

    Every call ends after ``timeout_s``: it is the gRPC deadline, which the server keeps too. A call that the server
    cannot take now is tried again as ``gatefuse.client.Client`` does it. Cancelling the awaiting task cancels the
    call. Calls raise InferenceError if they are not answered.
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
            url: ``HOST:PORT``, or any other gRPC target; or several, which take calls in turn as long as they answer.
            timeout_s: Seconds that a call may take unless it says otherwise.
            credentials: For TLS; None for plain text.
            retry: How calls that were refused are tried again; None for ``RetryPolicy()``, and ``NO_RETRY`` of
                ``gatefuse.transport.retry`` for not at all.
            shared_memory: Whether rows go through memory that the server shares: ``auto`` where they are many, the
                server is on this host, has no other endpoint and allows it; ``on`` always, or the call fails; ``off``.
        """
        self._transport = AioTransport(url, credentials, timeout_s, retry or RetryPolicy())
        self._sharing = AioSharing(self._transport, shared_memory)
        self._input_names: dict[str, str] = {}
        self._output_names: dict[str, tuple[str, ...]] = {}

    async def __aenter__(self) -> Self:
        """Returns the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connection."""
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls still open end with CANCELLED."""
        await self._sharing.close()
        await self._transport.close()

    @property
    def timeout_s(self) -> float:
        """Seconds that a call may take unless it says otherwise."""
        return self._transport.timeout_s

    async def is_live(self) -> bool:
        """Whether a server answers and says that it lives."""
        try:
            request = pb.ServerLiveRequest()
            return (await self._transport.call(rpcs.SERVER_LIVE, request, retry=False)).live
        except InferenceError as error:
            return error.false_if_unavailable()

    async def is_ready(self) -> bool:
        """Whether a server answers and all its models are ready."""
        try:
            request = pb.ServerReadyRequest()
            return (await self._transport.call(rpcs.SERVER_READY, request, retry=False)).ready
        except InferenceError as error:
            return error.false_if_unavailable()

    async def metadata(self) -> ServerMetadata:
        """Returns the server's description."""
        return server_metadata(
            await self._transport.call(rpcs.SERVER_METADATA, pb.ServerMetadataRequest())
        )

    async def models(self) -> tuple[str, ...]:
        """Returns the names of the server's models, ready or not."""
        index = await self._transport.call(rpcs.REPOSITORY_INDEX, pb.RepositoryIndexRequest())
        return tuple(model.name for model in index.models)

    async def model_ready(self, name: str) -> bool:
        """Whether the model is ready. An unknown model is an InferenceError with NOT_FOUND."""
        try:
            request = pb.ModelReadyRequest(name=name)
            return (await self._transport.call(rpcs.MODEL_READY, request, retry=False)).ready
        except InferenceError as error:
            return error.false_if_unavailable()

    async def model_metadata(self, name: str) -> ModelMetadata:
        """Returns the model's description."""
        request = pb.ModelMetadataRequest(name=name)
        return model_metadata(await self._transport.call(rpcs.MODEL_METADATA, request))

    async def infer(
        self,
        model: str,
        x: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        layer: int | None = None,
        datatype: Datatype | str | None = None,
        timeout_s: float | None = None,
        **parameters: ParameterValue,
    ) -> Result:
        """Runs a model on the rows of ``x``: see ``gatefuse.client.Client.infer``."""
        asked = await self._question(
            model, x, outputs=outputs, layer=layer, datatype=datatype, **parameters
        )
        try:
            response = await self._transport.call(rpcs.MODEL_INFER, asked.request, timeout_s)
        except InferenceError as error:
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                # The server may have come back with another model of that name: ask again next
                # time.
                self._input_names.pop(model, None)
                self._output_names.pop(model, None)
            if asked.lease is None or error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            # The server was started again, and knows none of our memory: that is made anew.
            self._sharing.forget()
            asked = await self._question(
                model, x, outputs=outputs, layer=layer, datatype=datatype, **parameters
            )
            response = await self._transport.call(rpcs.MODEL_INFER, asked.request, timeout_s)
        return asked.read(response)

    def stream(self) -> AioStream:
        """Returns a stream, to be used as a context: many requests in flight on one call.

        async with client.stream() as stream:
            results = await asyncio.gather(*(stream.infer("llama-ffn", x, layer=3) for x in batches))
        """
        return AioStream(self._transport, self._question)

    async def _question(
        self,
        model: str,
        x: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        layer: int | None = None,
        datatype: Datatype | str | None = None,
        **parameters: ParameterValue,
    ) -> Question:
        given = described(x, datatype)
        lease = None
        if self._sharing.wants(given.tensor_bytes * len(given.arrays)):
            outputs = outputs or await self._all_outputs(model)
            tensors = len(given.arrays) + len(outputs)
            lease = await self._sharing.lease(given.tensor_bytes, tensors)
        packed = given.packed() if lease is None else given.placed(lease.allocate)
        rows = await self._named(model, packed)
        return question(
            model, rows, x, layer=layer, outputs=outputs, parameters=parameters, lease=lease
        )

    async def _all_outputs(self, model: str) -> tuple[str, ...]:
        names = self._output_names.get(model)
        if names is None:
            metadata = await self.model_metadata(model)
            names = self._output_names[model] = tuple(output.name for output in metadata.outputs)
        return names

    async def _named(self, model: str, rows: Mapping[str, Rows]) -> Mapping[str, Rows]:
        """Rows without a name belong to the model's only input, whose name the server tells once."""
        if "" not in rows:
            return rows
        name = self._input_names.get(model)
        if name is None:
            name = self._input_names[model] = single_input(await self.model_metadata(model))
        return {name: rows[""]}
