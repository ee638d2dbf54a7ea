"""A server of the protocol in this process, for the tests of clients that share memory: a test changes it as it runs.

Its models add one to their only input for each output, in the order of the outputs: y = x + 1, z = x + 2.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tests.service.grpc_serving import serving

from gatefuse.protocol_words import OUTPUTS_LEFT_OUT, PUSHBACK_KEY, not_registered
from gatefuse_protos import open_inference_pb2 as pb

Code = grpc.StatusCode
SHM = Path("/dev/shm")


class Refusal(Exception):
    """What a request is answered with instead of rows."""

    def __init__(self, code: Code, text: str, pushback_ms: int | None = None) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.metadata = () if pushback_ms is None else ((PUSHBACK_KEY, str(pushback_ms)),)


class SharingServer:
    """What it knows, what it was asked, and how long it takes."""

    def __init__(self) -> None:
        self.url = ""
        self.input = "x"
        self.outputs = ["y"]
        self.regions: dict[str, str] = {}
        self.registering: Refusal | None = None
        self.allows = True
        self.delays_s: dict[str, float] = {}
        self.calls: list[str] = []
        self.refusals: list[Refusal] = []  # of the next requests
        self.on_the_wire = 0
        self.regions_used: list[str] = []
        self._lock = threading.Lock()

    def model_metadata(self, request: Any) -> pb.ModelMetadataResponse:
        response = pb.ModelMetadataResponse(name=request.name, versions=["1"])
        response.inputs.add(name=self.input, datatype="FP32", shape=[-1, -1])
        for name in self.outputs:
            response.outputs.add(name=name, datatype="FP32", shape=[-1, -1])
        return response

    def register(self, request: Any) -> pb.SystemSharedMemoryRegisterResponse:
        # As from the moment at which it is asked: also for a client that does not wait for the answer.
        if self.registering is not None:
            raise self.registering
        if not self.allows:
            raise Refusal(Code.UNIMPLEMENTED, "off")
        self.regions[request.name] = request.key
        self._delay("answer to register")
        return pb.SystemSharedMemoryRegisterResponse()

    def unregister(self, request: Any) -> pb.SystemSharedMemoryUnregisterResponse:
        self.regions.pop(request.name, None)
        return pb.SystemSharedMemoryUnregisterResponse()

    def infer(self, request: Any) -> pb.ModelInferResponse:
        if self.refusals:
            raise self.refusals.pop()
        if request.model_name == "absent" or request.parameters["layer"].int64_param == 99:
            raise Refusal(Code.NOT_FOUND, "no such model or layer")
        (tensor,) = request.inputs
        if tensor.name != self.input:
            raise Refusal(Code.INVALID_ARGUMENT, f"no input {tensor.name}")
        named = [output.name for output in request.outputs] or self.outputs
        if unknown := set(named) - set(self.outputs):
            raise Refusal(Code.INVALID_ARGUMENT, f"no output {unknown}")
        with self._lock:
            self.on_the_wire += bool(request.raw_input_contents)
        where = {output.name: output.parameters for output in request.outputs}
        content = (
            request.raw_input_contents[0]
            if request.raw_input_contents
            else self._region(tensor.parameters)
        )
        x = np.frombuffer(content, np.float32).reshape(tensor.shape)
        response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        if left_out := len(self.outputs) - len(named):
            response.parameters[OUTPUTS_LEFT_OUT].int64_param = left_out
        for name in named:
            response.outputs.add(name=name, datatype="FP32", shape=tensor.shape)
            rows = x + np.float32(self.outputs.index(name) + 1)
            shared = "shared_memory_region" in where.get(name, ())
            if shared:
                self._region(where[name], rows.tobytes())
            response.raw_output_contents.append(b"" if shared else rows.tobytes())
        return response

    def stream_infer(self, requests: Any, context: Any) -> Iterator[pb.ModelStreamInferResponse]:
        for request in requests:
            response = pb.ModelStreamInferResponse()
            try:
                response.infer_response.CopyFrom(self._call("ModelInfer", self.infer, request))
            except Refusal as refusal:
                response.error_message = refusal.text
                answer = response.infer_response
                answer.id = request.id
                answer.parameters["status"].string_param = refusal.code.name
            yield response

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        methods: dict[str, tuple[Any, Any]] = {
            "ModelMetadata": (self.model_metadata, pb.ModelMetadataRequest),
            "ModelInfer": (self.infer, pb.ModelInferRequest),
            "SystemSharedMemoryRegister": (self.register, pb.SystemSharedMemoryRegisterRequest),
            "SystemSharedMemoryUnregister": (
                self.unregister,
                pb.SystemSharedMemoryUnregisterRequest,
            ),
        }
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, method),
                request_deserializer=kind.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (method, kind) in methods.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.stream_infer,
            request_deserializer=pb.ModelInferRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        return handlers

    def _unary(self, name: str, method: Any) -> Any:
        def call(request: Any, context: Any) -> Any:
            try:
                return self._call(name, method, request)
            except Refusal as refusal:
                context.set_trailing_metadata(refusal.metadata)
                context.abort(refusal.code, refusal.text)

        return call

    def _call(self, name: str, method: Any, request: Any) -> Any:
        with self._lock:
            self.calls.append(name)
        self._delay(name)
        return method(request)

    def _delay(self, name: str) -> None:
        time.sleep(self.delays_s.get(name, 0.0))

    def _region(self, parameters: Any, write: bytes | None = None) -> bytes:
        """The bytes of a tensor in shared memory, after writing them if there are any."""
        if not self.allows:
            raise Refusal(Code.UNIMPLEMENTED, "off")
        name = parameters["shared_memory_region"].string_param
        if name not in self.regions:
            raise Refusal(Code.NOT_FOUND, not_registered(name))
        self.regions_used.append(name)
        start = parameters["shared_memory_offset"].int64_param
        try:
            with open(f"{SHM}{self.regions[name]}", "r+b") as file:
                file.seek(start)
                if write is not None:
                    file.write(write)
                    return write
                return file.read(parameters["shared_memory_byte_size"].int64_param)
        except FileNotFoundError:
            raise Refusal(Code.INVALID_ARGUMENT, "no shared memory object") from None


@contextmanager
def sharing_server() -> Iterator[SharingServer]:
    """A running one."""
    sharing = SharingServer()
    with serving(sharing.handlers(), threads=16) as sharing.url:
        yield sharing
