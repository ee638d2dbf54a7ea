"""Wire messages to rows and back. Every check of a request's content stands here, before anything is allocated."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A checked request: `payload` holds rows × columns elements of `datatype`, packed row by row."""

    model: ServedModel
    layer: int
    rows: int
    columns: int
    datatype: Datatype
    payload: bytes
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
    check_name(name, version)
    model = models.get(name)
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


def decode(request: pb.ModelInferRequest, models: Mapping[str, ServedModel]) -> InferRequest:
    """Checks a request and returns its rows.

    Raises:
        InvalidRequest: it breaks a rule, which the text names; NotFound for an unknown model, version or layer.
    """
    model = find_model(models, request.model_name, request.model_version)
    if len(request.id) > MAX_ID_LENGTH:
        raise InvalidRequest("size", f"id is longer than {MAX_ID_LENGTH} characters")
    layer = _layer(request, model)
    if len(request.inputs) != 1:
        raise InvalidRequest("shape", f"exactly one input is expected: '{model.input_name}'")
    tensor = request.inputs[0]
    if tensor.name != model.input_name:
        raise InvalidRequest("shape", f"the input of '{model.name}' is named '{model.input_name}'")
    _check_outputs(request, model)
    try:
        datatype = Datatype.parse(tensor.datatype)
    except ValueError as error:
        raise InvalidRequest("dtype", str(error)) from error
    rows, columns = _dimensions(tensor.shape, model)
    payload = _payload(request, tensor, datatype, rows * columns)
    return InferRequest(model, layer, rows, columns, datatype, payload, request.id)


def encode(request: InferRequest, output: bytes, cost: Cost) -> pb.ModelInferResponse:
    """The answer: `output` holds rows × columns elements of the request's datatype."""
    response = pb.ModelInferResponse(
        model_name=request.model.name, model_version=VERSION, id=request.request_id
    )
    tensor = response.outputs.add()
    tensor.name = request.model.output_name
    tensor.datatype = request.datatype.value
    tensor.shape.extend((request.rows, request.columns))
    response.raw_output_contents.append(output)
    parameters = response.parameters
    parameters["queue_us"].int64_param = round(cost.queue_s * 1e6)
    parameters["compute_us"].int64_param = round(cost.compute_s * 1e6)
    parameters["batch_rows"].int64_param = cost.batch_rows
    parameters["kernel_launches"].int64_param = cost.kernel_launches
    parameters["bytes_moved"].int64_param = cost.bytes_moved
    parameters["backend"].string_param = request.model.backend
    return response


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


def _layer(request: pb.ModelInferRequest, model: ServedModel) -> int:
    if "layer" not in request.parameters:
        if len(model.layers) == 1:
            return model.layers[0]
        raise InvalidRequest(
            "model",
            f"'{model.name}' has {len(model.layers)} layers: set the int64 parameter 'layer'",
        )
    parameter = request.parameters["layer"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidRequest("model", "parameter 'layer' must be an int64_param")
    layer: int = parameter.int64_param
    if layer not in model.layers:
        raise NotFound(f"model '{model.name}' does not serve that layer")
    return layer


def _check_outputs(request: pb.ModelInferRequest, model: ServedModel) -> None:
    if not request.outputs:
        return
    if len(request.outputs) > 1 or request.outputs[0].name != model.output_name:
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
    request: pb.ModelInferRequest,
    tensor: pb.ModelInferRequest.InferInputTensor,
    datatype: Datatype,
    elements: int,
) -> bytes:
    expected_bytes = elements * datatype.itemsize
    typed = tensor.HasField("contents")
    raw = request.raw_input_contents
    if typed and raw:
        raise InvalidRequest("mismatch", "give raw_input_contents or typed contents, not both")
    if typed:
        return _typed_payload(tensor, datatype, elements)
    if len(raw) != 1:
        raise InvalidRequest(
            "mismatch", "raw_input_contents must have one entry, for the one input"
        )
    payload: bytes = raw[0]
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
