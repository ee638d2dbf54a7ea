"""A small server of the protocol, for the tests of clients: numpy instead of kernels, no batching.

Started as a process; prints its port. Its models, all but the last with tiny-llama's weights unless
said otherwise:

fused, eager    right answers
swapped         the first two rows of every answer are exchanged
sloppy          every answer is off by one percent
unlucky         every tenth request is refused with RESOURCE_EXHAUSTED
slow            answers after 30 seconds
identity        elementwise, any width
gate            elementwise, inputs g and u, outputs y and t: t = silu(g) * half, y = t * u
gate-sloppy     the same, y off by one percent
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from gatefuse.client.messages import CHANNEL_OPTIONS
from gatefuse.commands.loadtest.tensors import TensorFile
from gatefuse.wire import Datatype, decode, encode
from gatefuse_protos import open_inference_pb2 as pb

CHECKPOINT = Path(__file__).resolve().parents[2] / "tiny-llama"
LAYERS = 4
HIDDEN = 256
MODELS = (
    "fused", "eager", "swapped", "sloppy", "unlucky", "slow", "identity", "gate", "gate-sloppy"
)  # fmt: skip
GATE_COLUMNS = 128
GATES = {"gate": 1.0, "gate-sloppy": 1.01}
BYTES_MOVED = 1_000_000


class Weights:
    """The MLPs of a checkpoint, as float32 arrays."""

    def __init__(self, checkpoint: Path) -> None:
        self._tensors: dict[str, NDArray[np.float32]] = {}
        for path in sorted(checkpoint.glob("model-*.safetensors")):
            file = TensorFile(path)
            self._tensors.update({name: file[name] for name in file if ".mlp." in name})

    def mlp(self, x: NDArray[np.float32], layer: int) -> NDArray[np.float32]:
        """Returns the MLP of x [M, H]."""
        gate, up, down = (
            self._tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"]
            for name in ("gate", "up", "down")
        )
        g = x @ gate.T
        result: NDArray[np.float32] = ((g / (1 + np.exp(-g))) * (x @ up.T)) @ down.T
        return result


class Refusal(Exception):
    """A request on a stream that is answered with an error."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class StreamContext:
    """Stands for a call's context where a request is one of many: only that request is refused."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise Refusal(code, text)


class FakeServer:
    """The seven methods."""

    def __init__(self) -> None:
        self._weights = Weights(CHECKPOINT)
        self._requests = 0

    async def server_live(self, request: Any, context: Any) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any, context: Any) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=True)

    async def server_metadata(self, request: Any, context: Any) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="fake", version="1", extensions=["parameters"])

    async def model_ready(self, request: Any, context: Any) -> pb.ModelReadyResponse:
        await self._check_name(request.name, context)
        return pb.ModelReadyResponse(ready=request.name != "slow")

    async def model_metadata(self, request: Any, context: Any) -> pb.ModelMetadataResponse:
        await self._check_name(request.name, context)
        if request.name in GATES:
            return self._gate_metadata(request.name)
        identity = request.name == "identity"
        response = pb.ModelMetadataResponse(name=request.name, versions=["1"], platform="gatefuse")
        width = -1 if identity else HIDDEN
        response.inputs.add(
            name="x" if identity else "hidden_states", datatype="BF16", shape=[-1, width]
        )
        response.outputs.add(name="output", datatype="BF16", shape=[-1, width])
        response.properties["backend"] = "fused" if request.name == "fused" else "eager"
        response.properties["dtype"] = "bf16"
        response.properties["layers"] = "0" if identity else ",".join(map(str, range(LAYERS)))
        return response

    @staticmethod
    def _gate_metadata(name: str) -> pb.ModelMetadataResponse:
        response = pb.ModelMetadataResponse(name=name, versions=["1"], platform="gatefuse")
        for tensor in ("g", "u"):
            response.inputs.add(name=tensor, datatype="BF16", shape=[-1, -1])
        for tensor in ("y", "t"):
            response.outputs.add(name=tensor, datatype="BF16", shape=[-1, -1])
        facts = {
            "backend": "fused",
            "dtype": "bf16",
            "layers": "0",
            "expression": "t = silu(g) * half; y = t * u",
            "constants": '{"half": 0.5}',
            "max_columns": str(GATE_COLUMNS),
        }
        response.properties.update(facts)
        return response

    def _gate(self, request: Any) -> pb.ModelInferResponse:
        """The outputs that are asked for, in that order."""
        x = {
            tensor.name: decode(raw, Datatype.parse(tensor.datatype), tuple(tensor.shape)).astype(
                np.float64
            )
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        t = 0.5 * x["g"] / (1 + np.exp(-x["g"]))
        outputs = {"y": t * x["u"] * GATES[request.model_name], "t": t}
        tensor = request.inputs[0]
        response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        for name in [output.name for output in request.outputs] or ["y", "t"]:
            response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
            packed = encode(outputs[name], Datatype.parse(tensor.datatype))
            response.raw_output_contents.append(packed)
        return response

    async def model_infer(self, request: Any, context: Any) -> pb.ModelInferResponse:
        name = request.model_name
        await self._check_name(name, context)
        if name in GATES:
            if request.inputs[0].shape[1] > GATE_COLUMNS:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too many columns")
            return self._gate(request)
        self._requests += 1
        tensor = request.inputs[0]
        expected = "x" if name == "identity" else "hidden_states"
        if tensor.name != expected:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"input is named {expected}")
        if name == "slow":
            await asyncio.sleep(30)
        if name == "unlucky" and self._requests % 10 == 0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        datatype = Datatype.parse(tensor.datatype)
        x = decode(request.raw_input_contents[0], datatype, tuple(tensor.shape)).astype(np.float32)
        output = x if name == "identity" else self._answer(name, x, self._layer(request))
        return self._response(request, encode(output, datatype))

    async def model_stream_infer(self, requests: Any, context: Any) -> None:
        """Answers each request as it is ready; a request of the model "breaker" breaks the stream."""
        tasks = set()
        write = asyncio.Lock()  # grpc.aio takes one message at a time
        async for request in requests:
            if request.model_name == "breaker":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream breaks")
            task = asyncio.create_task(self._answer_on_stream(request, context, write))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _answer_on_stream(self, request: Any, context: Any, write: asyncio.Lock) -> None:
        response = pb.ModelStreamInferResponse()
        # The later a request comes, the sooner it is answered: answers overtake each other.
        await asyncio.sleep(0.02 / (1 + int(request.id) % 7))
        try:
            answer = await self.model_infer(request, StreamContext())
            response.infer_response.CopyFrom(answer)
        except Refusal as refusal:
            response.error_message = refusal.text
            response.infer_response.id = request.id
            if request.model_name != "untold":
                code = response.infer_response.parameters["status"]
                code.string_param = refusal.code.name
        async with write:
            await context.write(response)

    def _answer(self, name: str, x: NDArray[np.float32], layer: int) -> NDArray[np.float32]:
        output = self._weights.mlp(x, layer)
        if name == "swapped" and len(output) > 1:
            output[[0, 1]] = output[[1, 0]]
        if name == "sloppy":
            output *= 1.01
        return output

    @staticmethod
    def _layer(request: Any) -> int:
        layer: int = request.parameters["layer"].int64_param
        return layer

    @staticmethod
    def _response(request: Any, output: bytes) -> pb.ModelInferResponse:
        tensor = request.inputs[0]
        response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.outputs.add(name="output", datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(output)
        fused = request.model_name == "fused"
        for key, value in {
            "queue_us": 10,
            "compute_us": 20,
            # As if each request shared its batch with as many rows of somebody else.
            "batch_rows": 2 * tensor.shape[0],
            "kernel_launches": 2 if fused else 5,
            "bytes_moved": BYTES_MOVED if fused else 2 * BYTES_MOVED,
        }.items():
            response.parameters[key].int64_param = value
        response.parameters["backend"].string_param = "fused" if fused else "eager"
        return response

    @staticmethod
    async def _check_name(name: str, context: Any) -> None:
        if name not in MODELS:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no model {name!r}")


async def serve() -> None:
    """Serves on a free port of the loopback address until it is terminated."""
    fake = FakeServer()
    methods = {
        "ServerLive": (fake.server_live, pb.ServerLiveRequest),
        "ServerReady": (fake.server_ready, pb.ServerReadyRequest),
        "ServerMetadata": (fake.server_metadata, pb.ServerMetadataRequest),
        "ModelReady": (fake.model_ready, pb.ModelReadyRequest),
        "ModelMetadata": (fake.model_metadata, pb.ModelMetadataRequest),
        "ModelInfer": (fake.model_infer, pb.ModelInferRequest),
    }
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(
            handler,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, (handler, request) in methods.items()
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        fake.model_stream_infer,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(pb.SERVICE_NAME, handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    sys.exit(asyncio.run(serve()))
