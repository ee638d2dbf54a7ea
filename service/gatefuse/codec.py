"""Wire messages to rows and back. Here and in `request_inputs` stands every check, before anything is allocated."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gatefuse.errors import InvalidRequest, NotFound
from gatefuse.link import ServedModel
from gatefuse.request_inputs import Payload, check_parameters, read_inputs
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

VERSION = "1"
MODEL_DATATYPES = {"fp32": Datatype.FP32, "fp16": Datatype.FP16, "bf16": Datatype.BF16}
MAX_ID_LENGTH = 256
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_VERSION = re.compile(r"[0-9]{1,10}")


MOST_HEAD_BYTES = 16 * 1024
"""More than an answer is ever longer than its outputs: names, shapes, numbers."""


Outputs = tuple[bytes, ...]
"""The packed rows of each output that a request asks for, in the order it asks."""


class InferRequest(NamedTuple):
    """A checked request: rows × columns elements of `datatype` for each input, packed row by row."""

    model: ServedModel
    layer: int
    rows: int
    columns: int
    datatype: Datatype
    payloads: tuple[Payload, ...]  # in the order of the model's inputs
    outputs: tuple[int, ...]  # which of the model's outputs are asked for, by number, in this order
    request_id: str

    @property
    def payload_bytes(self) -> int:
        """Bytes of all inputs as they travelled."""
        return sum(map(len, self.payloads))

    @property
    def answer_bytes(self) -> int:
        """Bytes of all outputs as they will travel."""
        return len(self.outputs) * self.rows * self.columns * self.datatype.itemsize


@dataclass(slots=True)
class Cost:
    """What a request cost: its own waiting time, and the device batches it rode in, shared with others."""

    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0
    kernel_launches: int = 0
    bytes_moved: int = 0


_INT64 = 2**63 - 1
_HIGHEST_COST = Cost(9e12, 9e12, _INT64, _INT64, _INT64)
"""No cost takes more bytes in an answer."""


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
    outputs = _chosen_outputs(request, model)
    raw = request.raw_input_contents if raw is None else raw
    inputs = read_inputs(request.inputs, raw, model)
    return InferRequest(model, layer, *inputs, outputs, request_id)


def encode(request: InferRequest, outputs: Outputs, cost: Cost) -> bytes:
    """The answer as a serialized ModelInferResponse; `outputs` are rows × columns of the request's datatype each.

    Serialized messages that are concatenated parse as one message with the fields of all, so what answers have in
    common is serialized once, and the rows are copied once.
    """
    model, datatype = request.model, request.datatype
    parts = [
        _answer_head(model, request.outputs, datatype, request.rows, request.columns),
        _parameter("queue_us", round(cost.queue_s * 1e6)),
        _parameter("compute_us", round(cost.compute_s * 1e6)),
        _parameter("batch_rows", cost.batch_rows),
        _parameter("kernel_launches", cost.kernel_launches),
        _parameter("bytes_moved", cost.bytes_moved),
    ]
    for output in outputs:
        parts += (_raw_head(len(output)), output)
    if request.request_id:
        parts.append(pb.ModelInferResponse(id=request.request_id).SerializeToString())
    return b"".join(parts)


def check_answer(request: InferRequest, max_message_bytes: int) -> None:
    """Raises InvalidRequest if the answer could be longer than a message may be, numbers in it included."""
    if request.answer_bytes <= max_message_bytes - MOST_HEAD_BYTES:
        return
    number = len(request.outputs)
    heads = number * len(_raw_head(request.answer_bytes // number))
    size_bytes = request.answer_bytes + heads + len(encode(request, (), _HIGHEST_COST))
    if size_bytes > max_message_bytes:
        raise InvalidRequest(
            "size",
            f"the answer takes {size_bytes} bytes, more than max_message_bytes ({max_message_bytes}): ask "
            "for fewer outputs or rows",
        )


@lru_cache(maxsize=4096)
def _answer_head(
    model: ServedModel, outputs: tuple[int, ...], datatype: Datatype, rows: int, columns: int
) -> bytes:
    response = pb.ModelInferResponse(model_name=model.name, model_version=VERSION)
    for number in outputs:
        name = model.outputs[number]
        response.outputs.add(name=name, datatype=datatype.value, shape=(rows, columns))
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
    for name in model.inputs:
        response.inputs.add(name=name, datatype=datatype, shape=[-1, width])
    for name in model.outputs:
        response.outputs.add(name=name, datatype=datatype, shape=[-1, width])
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
    if model.expression:
        facts["expression"] = model.expression
        facts["constants"] = json.dumps(dict(model.constants))
        facts["max_columns"] = str(model.max_columns)
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


def _chosen_outputs(request: pb.ModelInferRequest, model: ServedModel) -> tuple[int, ...]:
    """The numbers of the outputs that a request names; all if it names none."""
    if not request.outputs:
        return _numbers(len(model.outputs))
    for output in request.outputs:
        if output.parameters:
            check_parameters(output.parameters, "output")
    names = [output.name for output in request.outputs]
    if len(model.outputs) == 1 and (len(names) > 1 or names[0] != model.outputs[0]):
        raise InvalidRequest("shape", f"the only output of '{model.name}' is '{model.outputs[0]}'")
    for name in names:
        if name not in model.outputs:
            listed = ", ".join(model.outputs)
            raise InvalidRequest("shape", f"the outputs of '{model.name}' are {listed}")
    if len(set(names)) < len(names):
        raise InvalidRequest("shape", "an output is asked for twice")
    return tuple(map(model.outputs.index, names))


@lru_cache(maxsize=64)
def _numbers(count: int) -> tuple[int, ...]:
    return tuple(range(count))
