"""A request's input tensors: every rule of their names, shapes, datatypes and contents."""

from collections.abc import Sequence

import numpy as np

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.requests.parameters import MAX_QUOTED, check_tensor
from gatefuse.frontend.shared_memory import Regions, RegionSlice
from gatefuse.frontend.shared_memory.regions import points_at_region, region_slice
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

MAX_ROWS = 2**31 - 1
"""Of one request, whatever its model."""

Sent = bytes | memoryview
Payload = Sent | RegionSlice
Tensor = pb.ModelInferRequest.InferInputTensor


Inputs = tuple[int, int, Datatype, tuple[Payload, ...]]
"""Checked inputs: rows, columns, datatype, and the packed elements of each, in the order of the model's inputs."""


def read_inputs(
    tensors: Sequence[Tensor],
    raw: Sequence[Sent],
    model: ServedModel,
    regions: Regions | None = None,
) -> Inputs:
    """Checks the inputs of a request.

    `raw` has its raw contents, in the order of those `tensors` that are not in shared memory; `regions` is None where
    that is off.

    Raises:
        InvalidRequest: they break a rule, which the text names.
    """
    for tensor in tensors:
        if tensor.parameters:
            check_tensor(tensor.parameters, "input")
    if len(model.inputs) == 1:
        return _read_only_input(tensors, raw, model, regions)
    positions = _positions(tensors, model)
    first = tensors[0]
    datatype = _datatype(first)
    rows, columns = _dimensions(first.shape, model, f"input '{first.name}'")
    for tensor in tensors:
        found = _dimensions(tensor.shape, model, f"input '{tensor.name}'")
        if found != (rows, columns):
            raise InvalidRequest(
                "shape",
                f"all inputs must have one shape: '{first.name}' has {[rows, columns]}, "
                f"'{tensor.name}' has {list(found)}",
            )
        if tensor.datatype != first.datatype:
            raise InvalidRequest(
                "dtype",
                f"all inputs must have one datatype: '{first.name}' is {datatype}, "
                f"'{tensor.name}' is {_quoted(tensor.datatype)}",
            )
    contents = _contents(tensors, raw, datatype, rows * columns, regions)
    return rows, columns, datatype, tuple(contents[position] for position in positions)


def _read_only_input(
    tensors: Sequence[Tensor], raw: Sequence[Sent], model: ServedModel, regions: Regions | None
) -> Inputs:
    name = model.inputs[0]
    if len(tensors) != 1:
        raise InvalidRequest("shape", f"exactly one input is expected: '{name}'")
    tensor = tensors[0]
    if tensor.name != name:
        raise InvalidRequest("shape", f"the input of '{model.name}' is named '{name}'")
    datatype = _datatype(tensor)
    rows, columns = _dimensions(tensor.shape, model, "the input")
    elements = rows * columns
    if tensor.parameters and points_at_region(tensor.parameters):
        contents = _contents(tensors, raw, datatype, elements, regions)
        return rows, columns, datatype, tuple(contents)
    if tensor.HasField("contents"):
        if raw:
            raise _both_contents()
        return rows, columns, datatype, (_typed_payload(tensor, datatype, elements),)
    if len(raw) != 1:
        raise InvalidRequest(
            "mismatch", "raw_input_contents must have one entry, for the one input"
        )
    payload = raw[0]
    _check_size(payload, datatype, elements)
    return rows, columns, datatype, (payload,)


def _positions(tensors: Sequence[Tensor], model: ServedModel) -> list[int]:
    """Where each of the model's inputs stands in the request."""
    found: dict[str, int] = {}
    for position, tensor in enumerate(tensors):
        if tensor.name not in model.inputs:
            raise InvalidRequest(
                "shape",
                f"'{model.name}' has no input {_quoted(tensor.name)}: its inputs are "
                f"{', '.join(model.inputs)}",
            )
        if tensor.name in found:
            raise InvalidRequest("shape", f"input '{tensor.name}' is given twice")
        found[tensor.name] = position
    missing = [name for name in model.inputs if name not in found]
    if missing:
        raise InvalidRequest(
            "shape",
            f"input {', '.join(repr(name) for name in missing)} is missing: the inputs of "
            f"'{model.name}' are {', '.join(model.inputs)}",
        )
    return [found[name] for name in model.inputs]


def _datatype(tensor: Tensor) -> Datatype:
    try:
        return Datatype.parse(tensor.datatype)
    except ValueError as error:
        raise InvalidRequest("dtype", str(error)) from error


def _dimensions(shape: Sequence[int], model: ServedModel, what: str) -> tuple[int, int]:
    if len(shape) != 2:
        raise InvalidRequest("shape", f"the shape of {what} must be [rows, columns]")
    rows, columns = shape
    if rows < 1:
        raise InvalidRequest("shape", f"{what} must have at least one row")
    if rows > MAX_ROWS:
        raise InvalidRequest(
            "size", f"{what} has {rows} rows: no request can have more than {MAX_ROWS}"
        )
    if model.columns:
        if columns != model.columns:
            raise InvalidRequest("shape", f"'{model.name}' takes rows of {model.columns} columns")
    elif not 1 <= columns <= model.max_columns:
        raise InvalidRequest("shape", f"'{model.name}' takes 1 to {model.max_columns} columns")
    return rows, columns


def _contents(
    tensors: Sequence[Tensor],
    raw: Sequence[Sent],
    datatype: Datatype,
    elements: int,
    regions: Regions | None,
) -> Sequence[Payload]:
    """The packed elements of each tensor, in the order of the request."""
    sent = [tensor for tensor in tensors if not points_at_region(tensor.parameters)]
    contents = _sent_contents(sent, raw, datatype, elements)
    if len(sent) == len(tensors):
        return contents
    remaining = iter(contents)
    return [
        _pointed_at(tensor, datatype, elements, regions)
        if points_at_region(tensor.parameters)
        else next(remaining)
        for tensor in tensors
    ]


def _pointed_at(
    tensor: Tensor, datatype: Datatype, elements: int, regions: Regions | None
) -> RegionSlice:
    if tensor.HasField("contents"):
        raise InvalidRequest(
            "mismatch", f"input '{tensor.name}' is in shared memory and has typed contents"
        )
    payload = region_slice(tensor.parameters, f"input '{tensor.name}'", 0, regions)
    _check_size(payload, datatype, elements, f" for '{tensor.name}'")
    return payload


def _sent_contents(
    tensors: Sequence[Tensor], raw: Sequence[Sent], datatype: Datatype, elements: int
) -> Sequence[Sent]:
    """The packed elements of the tensors that the request itself carries."""
    typed = [tensor.HasField("contents") for tensor in tensors]
    if any(typed):
        if raw or not all(typed):
            raise _both_contents()
        return [_typed_payload(tensor, datatype, elements) for tensor in tensors]
    if len(raw) != len(tensors):
        raise InvalidRequest("mismatch", "raw_input_contents must have one entry for each input")
    for tensor, payload in zip(tensors, raw, strict=True):
        _check_size(payload, datatype, elements, f" for '{tensor.name}'")
    return raw


def _both_contents() -> InvalidRequest:
    return InvalidRequest("mismatch", "give raw_input_contents or typed contents, not both")


def _check_size(payload: Payload, datatype: Datatype, elements: int, whose: str = "") -> None:
    expected_bytes = elements * datatype.itemsize
    if len(payload) != expected_bytes:
        raise InvalidRequest(
            "size",
            f"the shape needs {expected_bytes} bytes of {datatype}, {len(payload)} were sent{whose}",
        )


def _typed_payload(tensor: Tensor, datatype: Datatype, elements: int) -> bytes:
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


def _quoted(text: str) -> str:
    return repr(text[:MAX_QUOTED])
