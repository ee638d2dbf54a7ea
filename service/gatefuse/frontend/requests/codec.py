"""Wire messages to rows and back. Here and in `inputs` stands every check, before anything is allocated."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gatefuse.errors import InvalidRequest, NotFound
from gatefuse.frontend.requests.inputs import Inputs, Payload, read_inputs
from gatefuse.frontend.requests.parameters import check_tensor, read_layer, read_waiting
from gatefuse.frontend.shared_memory import Regions, RegionSlice
from gatefuse.frontend.shared_memory.regions import points_at_region, region_slice
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

VERSION = "1"
MODEL_DATATYPES = {"fp32": Datatype.FP32, "fp16": Datatype.FP16, "bf16": Datatype.BF16}
MAX_ID_LENGTH = 256
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# What a model may be called on other servers: here it is only unknown.
_NAME_ELSEWHERE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_VERSION = re.compile(r"[0-9]{1,10}")


Outputs = tuple[bytes, ...]
"""The packed rows of each output that a request asks for, in the order it asks; empty where they went to a region."""


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
    targets: tuple[RegionSlice | None, ...] = ()  # where each output goes, if any goes to a region
    priority: int = 0  # 0: the model's default
    timeout_us: int = 0  # how long it may wait in the queue; 0: as long as the model lets it

    @property
    def payload_bytes(self) -> int:
        """Bytes of the inputs that travelled: not of those in shared memory."""
        return sum(
            len(payload) for payload in self.payloads if not isinstance(payload, RegionSlice)
        )

    @property
    def tensor_bytes(self) -> int:
        """Bytes of each input and output as it travels."""
        return self.rows * self.columns * self.datatype.itemsize

    @property
    def output_bytes(self) -> tuple[int, ...]:
        """Bytes of each output as it will travel: none of one that goes to shared memory."""
        size_bytes = self.tensor_bytes
        if not self.targets:
            return (size_bytes,) * len(self.outputs)
        return tuple(size_bytes if target is None else 0 for target in self.targets)


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
    """Raises InvalidRequest for a name or version that is none, NotFound for a name that no model here could have."""
    if not _MODEL_NAME.fullmatch(name):
        if _NAME_ELSEWHERE.fullmatch(name):
            raise NotFound(f"no model is named '{name}': names match {_MODEL_NAME.pattern}")
        raise InvalidRequest("model", f"model_name must match {_MODEL_NAME.pattern}")
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
    regions: Regions | None = None,
) -> InferRequest:
    """Checks a request and returns its rows; `raw` stands for its raw_input_contents if they were taken out of it.

    `regions` are the clients' shared memory, None where that is off.

    Raises:
        InvalidRequest: it breaks a rule, which the text names; NotFound for an unknown model, version or layer.
    """
    model = find_model(models, request.model_name, request.model_version)
    request_id = request.id
    if len(request_id) > MAX_ID_LENGTH:
        raise InvalidRequest("size", f"id is longer than {MAX_ID_LENGTH} characters")
    layer = read_layer(request, model)
    outputs = _chosen_outputs(request, model)
    raw = request.raw_input_contents if raw is None else raw
    inputs = read_inputs(request.inputs, raw, model, regions)
    targets = _targets(request, inputs, regions) if request.outputs else ()
    return InferRequest(model, layer, *inputs, outputs, request_id, targets, *read_waiting(request))


def metadata(model: ServedModel) -> pb.ModelMetadataResponse:
    """What ModelMetadata answers for a model."""
    width = model.columns or -1
    datatype = MODEL_DATATYPES[model.dtype].value
    response = pb.ModelMetadataResponse(name=model.name, versions=[VERSION], platform="gatefuse")
    for name in model.inputs:
        response.inputs.add(name=name, datatype=datatype, shape=[-1, width])
    for name in model.outputs:
        response.outputs.add(name=name, datatype=datatype, shape=[-1, width])
    for key, value in facts(model).items():
        response.properties[key] = value
    return response


def facts(model: ServedModel) -> dict[str, str]:
    """What else there is to know of a model, for its metadata and its configuration."""
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
    return facts


def _chosen_outputs(request: pb.ModelInferRequest, model: ServedModel) -> tuple[int, ...]:
    """The numbers of the outputs that a request names; all if it names none."""
    if not request.outputs:
        return _numbers(len(model.outputs))
    for output in request.outputs:
        if output.parameters:
            check_tensor(output.parameters, "output")
    names = [output.name for output in request.outputs]
    if not set(names).issubset(model.outputs):
        if len(model.outputs) == 1:
            text = f"the only output of '{model.name}' is '{model.outputs[0]}'"
        else:
            text = f"the outputs of '{model.name}' are {', '.join(model.outputs)}"
        raise InvalidRequest("shape", text)
    if len(set(names)) < len(names):
        raise InvalidRequest("shape", "an output is asked for twice")
    return tuple(map(model.outputs.index, names))


def _targets(
    request: pb.ModelInferRequest, inputs: Inputs, regions: Regions | None
) -> tuple[RegionSlice | None, ...]:
    """Where each output that a request names goes: a region, or None for the answer; empty if none goes to a region."""
    if not any(points_at_region(output.parameters) for output in request.outputs):
        return ()
    rows, columns, datatype, payloads = inputs
    needed_bytes = rows * columns * datatype.itemsize
    targets = tuple(
        region_slice(output.parameters, f"output '{output.name}'", needed_bytes, regions)
        if points_at_region(output.parameters)
        else None
        for output in request.outputs
    )
    _check_apart([each for each in payloads if isinstance(each, RegionSlice)], targets)
    return targets


def _check_apart(sources: Sequence[RegionSlice], targets: Sequence[RegionSlice | None]) -> None:
    """Raises InvalidRequest where an answer would be written over rows to be read, or over another answer."""
    places = [target for target in targets if target is not None]
    for number, target in enumerate(places):
        if any(target.overlaps(other) for other in places[:number]):
            raise InvalidRequest("mismatch", "two outputs overlap in shared memory")
        # In place is right: rows are read before their own answer is written.
        if any(target.overlaps(each) and target != each for each in sources):
            raise InvalidRequest(
                "mismatch",
                "an output overlaps an input in shared memory without being in its place",
            )


@lru_cache(maxsize=64)
def _numbers(count: int) -> tuple[int, ...]:
    return tuple(range(count))
