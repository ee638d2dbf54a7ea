"""A real gRPC server on loopback, before a dispatcher whose worker is a fake."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from tests.service.fakes import MODELS, FakeWorker, exact_rows

from gatefuse.client.messages import Rows, infer_request
from gatefuse.config import ModelConfig, RandomWeights, ServiceConfig
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.server import Server
from gatefuse.frontend.servicer import Servicer
from gatefuse.frontend.telemetry import Metadata
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

TIMEOUTS_S = {"ffn": 30.0, "deep": 30.0, "scale": 30.0}
METHODS: dict[str, tuple[Any, Any]] = {
    method.name: (getattr(pb, method.input_type.name), getattr(pb, method.output_type.name))
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    if not method.server_streaming
}
CONFIG = ServiceConfig(
    models=(ModelConfig(name="ffn", random=RandomWeights(hidden=3, intermediate=8)),),
    grpc_port=0,
    max_message_bytes=65536,
)


class TestBed:
    """A server, its dispatcher, and one client channel."""

    __test__ = False

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.servicer = Servicer(dispatcher, TIMEOUTS_S, CONFIG.max_message_bytes)
        self.server = Server(self.servicer, CONFIG)
        self.url = ""

    async def start(self) -> None:
        self.url = f"127.0.0.1:{await self.server.start()}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(self.url, options=options)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0)

    def worker(self, *, eager: bool = True, **limits: Any) -> FakeWorker:
        worker = FakeWorker(self.dispatcher, MODELS, eager=eager)
        worker.connect(**limits)
        return worker

    def call(
        self, name: str, /, *, timeout: float | None = 10, metadata: Metadata = (), **fields: Any
    ) -> Any:
        """Calls a method with a request of these fields."""
        request, response = METHODS[name]
        method = self.channel.unary_unary(
            f"/{pb.SERVICE_NAME}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        message = fields.pop("message", None) or request(**fields)
        return method(message, timeout=timeout, metadata=tuple(metadata))

    def infer(
        self,
        rows: int = 2,
        *,
        timeout: float | None = 10,
        metadata: Metadata = (),
        **changes: Any,
    ) -> Any:
        """Sends rows of the MLP; `changes` are fields of the request."""
        x = exact_rows(0, rows)
        message = infer_request("ffn", {"hidden_states": Rows(x.tobytes(), x.shape, Datatype.FP32)})
        for field, value in changes.items():
            setattr(message, field, value)
        return self.call("ModelInfer", message=message, timeout=timeout, metadata=metadata)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""
