"""Wire messages to rows and back. Every check of a request's content stands here, before anything is allocated."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gatefuse.errors import InvalidRequest, NotFound
from gatefuse.link import ServedModel
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

VERSION = "1"
MODEL_DATATYPES = {"fp32": Datatype.FP32, "fp16": Datatype.FP16, "bf16": Datatype.BF16}
MAX_ID_LENGTH = 256
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_VERSION = re.compile(r"[0-9]{1,10}")


class InferRequest(NamedTuple):
    """A checked request: `payload` holds rows × columns elements of `datatype`, packed row by row."""

    model: ServedModel
    layer: int
    rows: int
    columns: int
    datatype: Datatype
    payload: bytes | memoryview
    request_id: str


@dataclass(slots=True)
class Cost:
    """What a request cost: its own waiting time, and the device batches it rode in, shared with others."""

    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0
    kernel_launches: int = 0
    bytes_moved: int = 0


def find_model(models: Mapping[str, ServedModel], name: str, version: str) -> ServedModel:
    """The model a request names.

    Raises:
        NotFound: no model has that name, or it has no such version.
        InvalidRequest: the name or version is not one that a model could have.
    """
    model = models.get(name)
    if model is not None and not version:
        return model
    check_name(name, version)
    if model is None:
        raise NotFound(f"no model is named '{name}'")
    check_version(name, version)
    return model


def check_name(name: str, version: str) -> None:
    """Raises InvalidRequest for a name or version that no model could have."""
    if not _MODEL_NAME.fullmatch(name):
        raise InvalidRequest("model", "model_name must match [a-z0-9][a-z0-9-]{0,62}")
    if version and not _VERSION.fullmatch(version):
        raise InvalidRequest("model", "model_version must be a non-negative integer")


def check_version(name: str, version: str) -> None:
    """Raises NotFound for a version that the model does not have; none at all is the only one."""
    if version and int(version) != int(VERSION):
        raise NotFound(f"model '{name}' has no version {version}: its only version is {VERSION}")


def decode(
    request: pb.ModelInferRequest,
    models: Mapping[str, ServedModel],
    raw: Sequence[bytes | memoryview] | None = None,
) -> InferRequest:
    """Checks a request and returns its rows; `raw` stands for its raw_input_contents if they were taken out of it.

    Raises:
        InvalidRequest: it breaks a rule, which the text names; NotFound for an unknown model, version or layer.
    """
    model = find_model(models, request.model_name, request.model_version)
    request_id = request.id
    if len(request_id) > MAX_ID_LENGTH:
        raise InvalidRequest("size", f"id is longer than {MAX_ID_LENGTH} characters")
    layer = _layer(request, model)
    inputs = request.inputs
    if len(inputs) != 1:
        raise InvalidRequest("shape", f"exactly one input is expected: '{model.input_name}'")
    tensor = inputs[0]
    if tensor.name != model.input_name:
        raise InvalidRequest("shape", f"the input of '{model.name}' is named '{model.input_name}'")
    _check_outputs(request, model)
    try:
        datatype = Datatype.parse(tensor.datatype)
    except ValueError as error:
        raise InvalidRequest("dtype", str(error)) from error
    rows, columns = _dimensions(tensor.shape, model)
    raw = request.raw_input_contents if raw is None else raw
    payload = _payload(raw, tensor, datatype, rows * columns)
    return InferRequest(model, layer, rows, columns, datatype, payload, request_id)


def encode(request: InferRequest, output: bytes, cost: Cost) -> bytes:
    """The answer as a serialized ModelInferResponse; `output` is rows × columns of the request's datatype.

    Serialized messages that are concatenated parse as one message with the fields of all, so what answers have in
    common is serialized once, and the rows are copied once.
    """
    parts = [
        _answer_head(request.model, request.datatype, request.rows, request.columns),
        _parameter("queue_us", round(cost.queue_s * 1e6)),
        _parameter("compute_us", round(cost.compute_s * 1e6)),
        _parameter("batch_rows", cost.batch_rows),
        _parameter("kernel_launches", cost.kernel_launches),
        _parameter("bytes_moved", cost.bytes_moved),
        _raw_head(len(output)),
        output,
    ]
    if request.request_id:
        parts.append(pb.ModelInferResponse(id=request.request_id).SerializeToString())
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _answer_head(model: ServedModel, datatype: Datatype, rows: int, columns: int) -> bytes:
    response = pb.ModelInferResponse(model_name=model.name, model_version=VERSION)
    response.outputs.add(name=model.output_name, datatype=datatype.value, shape=(rows, columns))
    response.parameters["backend"].string_param = model.backend
    return response.SerializeToString()


@lru_cache(maxsize=65536)
def _parameter(name: str, value: int) -> bytes:
    response = pb.ModelInferResponse()
    response.parameters[name].int64_param = value
    return response.SerializeToString()


@lru_cache(maxsize=4096)
def _raw_head(size_bytes: int) -> bytes:
    """The tag and length that stand before the bytes of raw_output_contents."""
    message = pb.ModelInferResponse(raw_output_contents=[b""]).SerializeToString()
    tag = message[:-1]  # what follows the tag is the length, 0
    return tag + _varint(size_bytes)


def metadata(model: ServedModel) -> pb.ModelMetadataResponse:
    """What ModelMetadata answers for a model."""
    width = model.columns or -1
    datatype = MODEL_DATATYPES[model.dtype].value
    response = pb.ModelMetadataResponse(name=model.name, versions=[VERSION], platform="gatefuse")
    response.inputs.add(name=model.input_name, datatype=datatype, shape=[-1, width])
    response.outputs.add(name=model.output_name, datatype=datatype, shape=[-1, width])
    facts = {
        "kind": model.kind,
        "backend": model.backend,
        "description": model.description,
        "dtype": model.dtype,
        "layers": ",".join(map(str, model.layers)),
        "max_batch_rows": str(model.max_batch_rows),
        "accepted_datatypes": ",".join(Datatype),
    }
    if model.intermediate:
        facts["intermediate"] = str(model.intermediate)
    for key, value in facts.items():
        response.properties[key] = value
    return response


def _varint(value: int) -> bytes:
    """`value`, not negative, as protobuf writes lengths: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _layer(request: pb.ModelInferRequest, model: ServedModel) -> int:
    parameters = request.parameters
    if "layer" not in parameters:
        if len(model.layers) == 1:
            return model.layers[0]
        raise InvalidRequest(
            "model",
            f"'{model.name}' has {len(model.layers)} layers: set the int64 parameter 'layer'",
        )
    parameter = parameters["layer"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidRequest("model", "parameter 'layer' must be an int64_param")
    layer: int = parameter.int64_param
    if layer not in model.layers:
        raise NotFound(f"model '{model.name}' does not serve that layer")
    return layer


def _check_outputs(request: pb.ModelInferRequest, model: ServedModel) -> None:
    outputs = request.outputs
    if not outputs:
        return
    if len(outputs) > 1 or outputs[0].name != model.output_name:
        raise InvalidRequest("shape", f"the only output of '{model.name}' is '{model.output_name}'")


def _dimensions(shape: Sequence[int], model: ServedModel) -> tuple[int, int]:
    if len(shape) != 2:
        raise InvalidRequest("shape", "the input's shape must be [rows, columns]")
    rows, columns = shape
    if rows < 1:
        raise InvalidRequest("shape", "the input must have at least one row")
    if rows > 2**31 - 1:
        raise InvalidRequest("size", "too many rows")
    if model.columns:
        if columns != model.columns:
            raise InvalidRequest("shape", f"'{model.name}' takes rows of {model.columns} columns")
    elif not 1 <= columns <= model.max_columns:
        raise InvalidRequest("shape", f"'{model.name}' takes 1 to {model.max_columns} columns")
    return rows, columns


def _payload(
    raw: Sequence[bytes | memoryview],
    tensor: pb.ModelInferRequest.InferInputTensor,
    datatype: Datatype,
    elements: int,
) -> bytes | memoryview:
    expected_bytes = elements * datatype.itemsize
    typed = tensor.HasField("contents")
    if typed and raw:
        raise InvalidRequest("mismatch", "give raw_input_contents or typed contents, not both")
    if typed:
        return _typed_payload(tensor, datatype, elements)
    if len(raw) != 1:
        raise InvalidRequest(
            "mismatch", "raw_input_contents must have one entry, for the one input"
        )
    payload = raw[0]
    if len(payload) != expected_bytes:
        raise InvalidRequest(
            "size",
            f"the shape needs {expected_bytes} bytes of {datatype}, {len(payload)} were sent",
        )
    return payload


def _typed_payload(
    tensor: pb.ModelInferRequest.InferInputTensor, datatype: Datatype, elements: int
) -> bytes:
    if datatype is not Datatype.FP32:
        raise InvalidRequest("dtype", f"{datatype} travels in raw_input_contents only")
    contents = tensor.contents
    if any(field.name != "fp32_contents" for field, _ in contents.ListFields()):
        raise InvalidRequest("mismatch", "FP32 values belong in fp32_contents")
    values = contents.fp32_contents
    if len(values) != elements:
        raise InvalidRequest(
            "size", f"the shape needs {elements} values, {len(values)} were sent in fp32_contents"
        )
    return np.fromiter(values, dtype="<f4", count=elements).tobytes()
