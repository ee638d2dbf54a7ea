"""The generated module: up to date, in a pool of its own, with the protocol's field numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from gatefuse_protos import open_inference_pb2 as pb

REPOSITORY = Path(__file__).resolve().parents[2]

# Written down from the protocol, not from our .proto file: names and numbers of every field that it
# defines for these messages.
FIELD_NUMBERS = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": 1},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": 1},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {"name": 1, "version": 2, "extensions": 3},
    "ModelReadyRequest": {"name": 1, "version": 2},
    "ModelReadyResponse": {"ready": 1},
    "ModelMetadataRequest": {"name": 1, "version": 2},
    "ModelMetadataResponse": {
        "name": 1,
        "versions": 2,
        "platform": 3,
        "inputs": 4,
        "outputs": 5,
        "properties": 6,
    },
    "ModelMetadataResponse.TensorMetadata": {"name": 1, "datatype": 2, "shape": 3},
    "RepositoryIndexRequest": {"repository_name": 1, "ready": 2},
    "RepositoryIndexResponse": {"models": 1},
    "RepositoryIndexResponse.ModelIndex": {"name": 1, "version": 2, "state": 3, "reason": 4},
    "InferParameter": {
        "bool_param": 1,
        "int64_param": 2,
        "string_param": 3,
        "double_param": 4,
        "uint64_param": 5,
    },
    "InferTensorContents": {
        "bool_contents": 1,
        "int_contents": 2,
        "int64_contents": 3,
        "uint_contents": 4,
        "uint64_contents": 5,
        "fp32_contents": 6,
        "fp64_contents": 7,
        "bytes_contents": 8,
    },
    "ModelInferRequest": {
        "model_name": 1,
        "model_version": 2,
        "id": 3,
        "parameters": 4,
        "inputs": 5,
        "outputs": 6,
        "raw_input_contents": 7,
    },
    "ModelInferRequest.InferInputTensor": {
        "name": 1,
        "datatype": 2,
        "shape": 3,
        "parameters": 4,
        "contents": 5,
    },
    "ModelInferRequest.InferRequestedOutputTensor": {"name": 1, "parameters": 2},
    "ModelInferResponse": {
        "model_name": 1,
        "model_version": 2,
        "id": 3,
        "parameters": 4,
        "outputs": 5,
        "raw_output_contents": 6,
    },
    "ModelInferResponse.InferOutputTensor": {
        "name": 1,
        "datatype": 2,
        "shape": 3,
        "parameters": 4,
        "contents": 5,
    },
}

BOTH_STUBS_AT_WORK = """
ours = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"ab"])
ours.parameters["layer"].int64_param = 3
ours.inputs.add(name="x", datatype="FP32", shape=[1, 2])
theirs = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())
assert theirs.parameters["layer"].int64_param == 3
assert theirs.inputs[0].shape == [1, 2] and theirs.raw_input_contents[0] == b"ab"
assert pb.ModelInferRequest.FromString(theirs.SerializeToString()) == ours
tritonclient.grpc.InferInput("x", [1, 2], "FP32")
"""
OUR_IMPORT = "from gatefuse_protos import open_inference_pb2 as pb\n"
THEIR_IMPORT = "import tritonclient.grpc\nfrom tritonclient.grpc import service_pb2\n"


def _messages() -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        found[name] = message
        for nested in message.nested_types:
            if not nested.GetOptions().map_entry:
                found[f"{name}.{nested.name}"] = nested
    return found


def test_generated_files_are_up_to_date() -> None:
    generator = REPOSITORY / "protos" / "generate.py"
    result = subprocess.run(
        [sys.executable, str(generator), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_field_numbers_are_the_protocols() -> None:
    ours = {
        name: {field.name: field.number for field in message.fields}
        for name, message in _messages().items()
    }
    assert ours == FIELD_NUMBERS


def test_messages_and_types_agree_with_tritonclient() -> None:
    from tritonclient.grpc import service_pb2

    theirs = service_pb2.DESCRIPTOR.message_types_by_name
    for name, message in _messages().items():
        outer, _, inner = name.partition(".")
        other = theirs[outer].nested_types_by_name[inner] if inner else theirs[outer]
        for field in message.fields:
            # The properties of a model are the open protocol's, not Triton's.
            if (name, field.name) == ("ModelMetadataResponse", "properties"):
                assert field.number not in other.fields_by_number
                continue
            same = other.fields_by_number[field.number]
            assert (same.name, same.type, same.is_repeated) == (
                field.name,
                field.type,
                field.is_repeated,
            )


def test_service_has_the_seven_unary_calls() -> None:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == pb.SERVICE_NAME == "inference.GRPCInferenceService"
    for name in (
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelInfer",
        "RepositoryIndex",
    ):
        method = service.methods_by_name[name]
        assert method.input_type.name == f"{name}Request"
        assert method.output_type.name == f"{name}Response"
        assert not method.client_streaming
        assert not method.server_streaming
    assert len(service.methods) == 7


def test_default_pool_is_left_alone() -> None:
    script = OUR_IMPORT + (
        "from google.protobuf import descriptor_pool\n"
        "try:\n"
        "    descriptor_pool.Default().FindMessageTypeByName('inference.ModelInferRequest')\n"
        "except KeyError:\n"
        "    raise SystemExit(0)\n"
        "raise SystemExit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    assert pb.POOL is not descriptor_pool.Default()


@pytest.mark.parametrize(
    "imports", [OUR_IMPORT + THEIR_IMPORT, THEIR_IMPORT + OUR_IMPORT], ids=["ours", "theirs"]
)
def test_lives_with_tritonclient_in_either_order_of_import(imports: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", imports + BOTH_STUBS_AT_WORK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_message_is_exported_and_survives_the_wire() -> None:
    for name in pb.DESCRIPTOR.message_types_by_name:
        message_class = getattr(pb, name)
        assert issubclass(message_class, Message)
        assert message_class.FromString(message_class().SerializeToString()) == message_class()
