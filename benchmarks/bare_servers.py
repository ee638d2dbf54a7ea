"""The two bare servers that the service is measured against; started as a process, prints its port.

echo   A: bytes in, the same bytes out. What gRPC alone costs in this language.
batch  B: parses the request, batches the rows of whatever has arrived while the last batch was running, without ever
       waiting, copies them through (the identity), and builds the answer. What the smallest possible service costs:
       no other process, no checks, no deadlines, no metrics.

Both run on uvloop with generic handlers and no (de)serialisers of gRPC's own.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import Any

import grpc
import grpc.aio
import numpy as np
import uvloop
from numpy.typing import NDArray

from gatefuse.client.messages import CHANNEL_OPTIONS
from gatefuse_protos import open_inference_pb2 as pb


async def echo(request: bytes, context: Any) -> bytes:
    """Answers with the request."""
    return request


class Batcher:
    """Batches rows in the process of the server itself."""

    def __init__(self) -> None:
        self._waiting: list[tuple[NDArray[np.float32], asyncio.Future[bytes]]] = []
        self._arrived = asyncio.Event()

    async def infer(self, request: bytes, context: Any) -> bytes:
        """Answers one request."""
        message = pb.ModelInferRequest.FromString(request)
        tensor = message.inputs[0]
        rows = np.frombuffer(message.raw_input_contents[0], np.float32).reshape(tuple(tensor.shape))
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, answered))
        self._arrived.set()
        response = pb.ModelInferResponse(
            model_name=message.model_name, id=message.id, raw_output_contents=[await answered]
        )
        response.outputs.add(name="y", datatype=tensor.datatype, shape=tensor.shape)
        return response.SerializeToString()

    async def run(self) -> None:
        """Runs batches for ever."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._waiting = self._waiting, []
            output = np.concatenate([rows for rows, _ in batch]).copy()
            start = 0
            for rows, answered in batch:
                if not answered.done():
                    answered.set_result(output[start : start + len(rows)].tobytes())
                start += len(rows)


async def serve(kind: str) -> None:
    """Serves on a free port of the loopback address until it is terminated."""
    handler = echo
    running: asyncio.Task[None] | None = None
    if kind == "batch":
        batcher = Batcher()
        handler = batcher.infer
        running = asyncio.create_task(batcher.run())
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    method: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(pb.SERVICE_NAME, {"ModelInfer": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print(port, flush=True)
    await stopping.wait()
    await server.stop(grace=1)
    if running is not None:
        running.cancel()


def main() -> int:
    """Serves as the command line says."""
    parser = argparse.ArgumentParser(description="A bare gRPC server to measure against.")
    parser.add_argument("kind", choices=("echo", "batch"))
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments.kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
