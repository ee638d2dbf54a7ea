"""The asyncio client: the same calls as ``gatefuse.client.blocking``, awaited.

async with gatefuse.aio.Client("localhost:8001") as client:
    result = await client.infer("llama-ffn", hidden_states, layer=3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, SupportsIndex

import grpc

from gatefuse.client.arrays import Arrays, DatatypeLike
from gatefuse.client.blocking import DEFAULT_TIMEOUT_S
from gatefuse.client.memory import SharedMemory
from gatefuse.client.messages import InferenceError, ParameterValue, Result
from gatefuse.client.metadata import ModelMetadata, ServerMetadata, model_metadata, server_metadata
from gatefuse.client.prepared import InferOptions
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.aio_stream import AioStream
from gatefuse.client.transport.asynchronous import AioTransport
from gatefuse.client.transport.deadline import Deadline
from gatefuse.client.transport.inference import Inference
from gatefuse.client.transport.retry import RetryPolicy, checked_policy
from gatefuse.client.transport.sharing import UNREGISTER_S, Sharing
from gatefuse_protos import open_inference_pb2 as pb

__all__ = ["AioClient", "InferenceError"]


class AioClient:
    """A connection to a server, or to each of several, for the event loop that is running when it is made.

    Every call ends after ``timeout_s``: it is the gRPC deadline, which the server keeps too. A call that the server
    cannot take now is tried again as ``gatefuse.Client`` does it. Cancelling the awaiting task cancels the
    call. Calls raise InferenceError if they are not answered, and RuntimeError in a forked child.
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
        self._transport = AioTransport(url, credentials, timeout_s, checked_policy(retry))
        self._sharing = Sharing(shared_memory, self._transport.endpoints)
        self._inference = Inference(self._sharing)

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
        """Closes the connection; calls still open, and any later one, end with CANCELLED.

        Where rows went through memory, the server is told that it may let go of it, which takes a second at the most.
        """
        await self._transport.close()
        self._sharing.close()
        if self._sharing.has_dropped:
            # No request is open any more that could miss its memory.
            transport = self._transport.anew()
            await transport.run(self._sharing.unregister(), Deadline(UNREGISTER_S))
            await transport.close()

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
            return error.false_if_unanswered()

    async def is_ready(self) -> bool:
        """Whether a server answers and all its models are ready."""
        try:
            request = pb.ServerReadyRequest()
            return (await self._transport.call(rpcs.SERVER_READY, request, retry=False)).ready
        except InferenceError as error:
            return error.false_if_unanswered()

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
            return error.false_if_unanswered()

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
        layer: SupportsIndex | None = None,
        datatype: DatatypeLike | None = None,
        timeout_s: float | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> Result:
        """Runs a model on the rows of ``x``: see ``gatefuse.client.blocking.Client.infer``."""
        options = InferOptions(outputs, layer, datatype, parameters or {})
        deadline = self._transport.deadline(timeout_s)
        return await self._transport.run(self._inference.infer(model, x, options), deadline)

    def stream(self) -> AioStream:
        """Returns a stream, to be used as a context: many requests in flight on one call.

        async with client.stream() as stream:
            results = await asyncio.gather(*(stream.infer("llama-ffn", x, layer=3) for x in batches))
        """
        return AioStream(self._transport, self._inference)
