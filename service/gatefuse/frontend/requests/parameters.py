"""Parameters: a request's, which layer and how it waits; and those of its tensors."""

from collections.abc import Container, Iterable, Sequence

from gatefuse.errors import InvalidRequest, NotFound
from gatefuse.frontend.shared_memory.regions import BYTE_SIZE, OFFSET, REGION
from gatefuse.link.served_model import ServedModel
from gatefuse_protos import open_inference_pb2 as pb

_RESERVED_PREFIX = "triton_"
# That the client would take an answer without rows as the last. Ours have one answer each, and it has rows.
_EMPTY_FINAL = "triton_enable_empty_final_response"
_CLASSIFICATION = "classification"
_SHARED_MEMORY_PREFIX = "shared_memory_"
_IN_REGION = (REGION, BYTE_SIZE, OFFSET)
MAX_QUOTED = 64
"""Characters of a client's own name that an error repeats."""


def read_layer(request: pb.ModelInferRequest, model: ServedModel) -> int:
    """The layer that a request names, or the model's only one.

    Raises:
        InvalidRequest: it must name one, or not so; NotFound if the model does not serve it.
    """
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
        raise NotFound(
            f"model '{model.name}' does not serve layer {layer}, but {listed(model.layers)}"
        )
    return layer


def listed(layers: Sequence[int]) -> str:
    """Ascending layers in words, neighbours as a range: 0 to 3, 7."""
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and layer == ranges[-1][1] + 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)


def read_waiting(request: pb.ModelInferRequest) -> tuple[int, int]:
    """The parameters `priority` and `timeout` (in microseconds), 0 where they are not given.

    Raises:
        InvalidRequest: they are no such numbers, or there is a parameter whose name is reserved.
    """
    priority = timeout_us = 0
    for name, value in request.parameters.items():
        if name == "priority":
            priority = _not_negative(name, value)
        elif name == "timeout":
            timeout_us = _not_negative(name, value)
        elif name.startswith(_RESERVED_PREFIX) and name != _EMPTY_FINAL:
            raise InvalidRequest(
                "mismatch", f"parameters that begin with '{_RESERVED_PREFIX}' are reserved"
            )
    return priority, timeout_us


def check_tensor(parameters: Iterable[str], what: str) -> None:
    """Raises InvalidRequest for a parameter of an input or output that asks for another answer than it would get."""
    names = tuple(parameters)
    known: Container[str] = _IN_REGION if REGION in names else ()
    for name in names:
        if name in known:
            continue
        if name == _CLASSIFICATION or name.startswith(_SHARED_MEMORY_PREFIX):
            alone = f" without '{REGION}'" if name in _IN_REGION else ""
            raise InvalidRequest(
                "mismatch",
                f"the {what}'s parameter {name[:MAX_QUOTED]!r} is not supported by this server{alone}",
            )


def _not_negative(name: str, parameter: pb.InferParameter) -> int:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise InvalidRequest("mismatch", f"parameter '{name}' must be an int64_param")
    value: int = getattr(parameter, kind)
    if value < 0:
        raise InvalidRequest("mismatch", f"parameter '{name}' must not be negative")
    return value
