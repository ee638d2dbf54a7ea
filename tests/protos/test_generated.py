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
    "ModelStreamInferResponse": {"error_message": 1, "infer_response": 2},
    "ModelConfigRequest": {"name": 1, "version": 2},
    "ModelConfigResponse": {"config": 1},
    "ModelConfig": {
        "name": 1,
        "platform": 2,
        "version_policy": 3,
        "max_batch_size": 4,
        "input": 5,
        "output": 6,
        "instance_group": 7,
        "default_model_filename": 8,
        "metric_tags": 10,
        "dynamic_batching": 11,
        "parameters": 14,
        "backend": 17,
        "model_transaction_policy": 19,
        "response_cache": 24,
        "runtime": 25,
    },
    "ModelVersionPolicy": {"latest": 1, "all": 2, "specific": 3},
    "ModelVersionPolicy.Latest": {"num_versions": 1},
    "ModelVersionPolicy.All": {},
    "ModelVersionPolicy.Specific": {"versions": 1},
    "ModelInput": {
        "name": 1,
        "data_type": 2,
        "format": 3,
        "dims": 4,
        "reshape": 5,
        "is_shape_tensor": 6,
        "allow_ragged_batch": 7,
        "optional": 8,
    },
    "ModelOutput": {
        "name": 1,
        "data_type": 2,
        "dims": 3,
        "label_filename": 4,
        "reshape": 5,
        "is_shape_tensor": 6,
    },
    "ModelTensorReshape": {"shape": 1},
    "ModelInstanceGroup": {"name": 1, "count": 2, "gpus": 3, "kind": 4},
    "ModelDynamicBatching": {
        "preferred_batch_size": 1,
        "max_queue_delay_microseconds": 2,
        "preserve_ordering": 3,
        "priority_levels": 4,
        "default_priority_level": 5,
        "default_queue_policy": 6,
        "priority_queue_policy": 7,
    },
    "ModelQueuePolicy": {
        "timeout_action": 1,
        "default_timeout_microseconds": 2,
        "allow_timeout_override": 3,
        "max_queue_size": 4,
    },
    "ModelParameter": {"string_value": 1},
    "ModelTransactionPolicy": {"decoupled": 1},
    "ModelResponseCache": {"enable": 1},
    "ModelStatisticsRequest": {"name": 1, "version": 2},
    "ModelStatisticsResponse": {"model_stats": 1},
    "StatisticDuration": {"count": 1, "ns": 2},
    "InferStatistics": {
        "success": 1,
        "fail": 2,
        "queue": 3,
        "compute_input": 4,
        "compute_infer": 5,
        "compute_output": 6,
        "cache_hit": 7,
        "cache_miss": 8,
    },
    "InferResponseStatistics": {
        "compute_infer": 1,
        "compute_output": 2,
        "success": 3,
        "fail": 4,
        "empty_response": 5,
        "cancel": 6,
    },
    "InferBatchStatistics": {
        "batch_size": 1,
        "compute_input": 2,
        "compute_infer": 3,
        "compute_output": 4,
    },
    "MemoryUsage": {"type": 1, "id": 2, "byte_size": 3},
    "ModelStatistics": {
        "name": 1,
        "version": 2,
        "last_inference": 3,
        "inference_count": 4,
        "execution_count": 5,
        "inference_stats": 6,
        "batch_stats": 7,
        "memory_usage": 8,
        "response_stats": 9,
    },
    "ModelRepositoryParameter": {
        "bool_param": 1,
        "int64_param": 2,
        "string_param": 3,
        "bytes_param": 4,
    },
    "RepositoryIndexRequest": {"repository_name": 1, "ready": 2},
    "RepositoryIndexResponse": {"models": 1},
    "RepositoryIndexResponse.ModelIndex": {"name": 1, "version": 2, "state": 3, "reason": 4},
    "RepositoryModelLoadRequest": {"repository_name": 1, "model_name": 2, "parameters": 3},
    "RepositoryModelLoadResponse": {},
    "RepositoryModelUnloadRequest": {"repository_name": 1, "model_name": 2, "parameters": 3},
    "RepositoryModelUnloadResponse": {},
    "SystemSharedMemoryStatusRequest": {"name": 1},
    "SystemSharedMemoryStatusResponse": {"regions": 1},
    "SystemSharedMemoryStatusResponse.RegionStatus": {
        "name": 1,
        "key": 2,
        "offset": 3,
        "byte_size": 4,
    },
    "SystemSharedMemoryRegisterRequest": {"name": 1, "key": 2, "offset": 3, "byte_size": 4},
    "SystemSharedMemoryRegisterResponse": {},
    "SystemSharedMemoryUnregisterRequest": {"name": 1},
    "SystemSharedMemoryUnregisterResponse": {},
    "CudaSharedMemoryStatusRequest": {"name": 1},
    "CudaSharedMemoryStatusResponse": {"regions": 1},
    "CudaSharedMemoryStatusResponse.RegionStatus": {"name": 1, "device_id": 2, "byte_size": 3},
    "CudaSharedMemoryRegisterRequest": {
        "name": 1,
        "raw_handle": 2,
        "device_id": 3,
        "byte_size": 4,
    },
    "CudaSharedMemoryRegisterResponse": {},
    "CudaSharedMemoryUnregisterRequest": {"name": 1},
    "CudaSharedMemoryUnregisterResponse": {},
    "TraceSettingRequest": {"settings": 1, "model_name": 2},
    "TraceSettingRequest.SettingValue": {"value": 1},
    "TraceSettingResponse": {"settings": 1},
    "TraceSettingResponse.SettingValue": {"value": 1},
    "LogSettingsRequest": {"settings": 1},
    "LogSettingsRequest.SettingValue": {"bool_param": 1, "uint32_param": 2, "string_param": 3},
    "LogSettingsResponse": {"settings": 1},
    "LogSettingsResponse.SettingValue": {"bool_param": 1, "uint32_param": 2, "string_param": 3},
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
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs = {
        **model_config_pb2.DESCRIPTOR.message_types_by_name,
        **service_pb2.DESCRIPTOR.message_types_by_name,
    }
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


def test_enums_agree_with_tritonclient() -> None:
    from tritonclient.grpc import model_config_pb2

    theirs = model_config_pb2.DESCRIPTOR
    assert dict(pb.DataType.items()) == dict(model_config_pb2.DataType.items())
    assert pb.TYPE_BF16 == 14
    for name, message in _messages().items():
        for enum in message.enum_types:
            other = theirs.message_types_by_name[name].enum_types_by_name[enum.name]
            assert {value.name: value.number for value in enum.values} == {
                value.name: value.number for value in other.values
            }


def test_service_has_every_call_of_the_protocol() -> None:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == pb.SERVICE_NAME == "inference.GRPCInferenceService"
    regions = [f"{kind}SharedMemory" for kind in ("System", "Cuda")]
    assert set(service.methods_by_name) == {
        *("ServerLive", "ServerReady", "ServerMetadata"),
        *("ModelReady", "ModelMetadata", "ModelInfer", "ModelStreamInfer"),
        *("ModelConfig", "ModelStatistics", "TraceSetting", "LogSettings"),
        *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
        *(f"{kind}{verb}" for kind in regions for verb in ("Status", "Register", "Unregister")),
    }
    for name, method in service.methods_by_name.items():
        streams = name == "ModelStreamInfer"
        request = "ModelInfer" if streams else name
        assert method.input_type.name == f"{request}Request"
        assert method.output_type.name == f"{name}Response"
        assert method.client_streaming is method.server_streaming is streams


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
