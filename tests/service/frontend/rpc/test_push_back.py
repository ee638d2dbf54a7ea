"""What a server that cannot take a call now tells gRPC's retries."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from gatefuse.client.transport.retry import Failure
from gatefuse.errors import Draining, InvalidRequest, NoReplica, NotLoaded, QueueFull
from gatefuse.frontend.rpc.call import unary
from gatefuse_protos import open_inference_pb2 as pb


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (QueueFull("full"), True),
        (Draining(), True),
        (NoReplica("none"), True),
        (InvalidRequest("shape", "wrong"), False),
        (RuntimeError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_shortage_comes_with_the_time_to_come_back(error: Exception, told: bool) -> None:
    failure = await _failure(error)
    assert (failure.pushback_s is not None) is told
    assert failure.may_pass is told
    assert not told or 0 < (failure.pushback_s or 0) <= 1


@pytest.mark.asyncio
async def test_a_model_that_somebody_must_load_is_not_asked_for_again() -> None:
    failure = await _failure(NotLoaded("model 'ffn' is not loaded"))
    assert failure.code is grpc.StatusCode.UNAVAILABLE
    assert not failure.may_pass


async def _failure(error: Exception) -> Failure:
    """What a client makes of an error."""

    async def fail(request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        raise error

    handlers = {"ServerLive": unary("ServerLive", pb.ServerLiveRequest.FromString, fail)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(pb.SERVICE_NAME, handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{pb.SERVICE_NAME}/ServerLive"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=10)
    await server.stop(0)
    return Failure.of(caught.value)
