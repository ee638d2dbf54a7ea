"""A request's parameters: which layer, and how it waits."""

from gatefuse.errors import InvalidRequest, NotFound
from gatefuse.link import ServedModel
from gatefuse_protos import open_inference_pb2 as pb

_RESERVED_PREFIX = "triton_"
# That the client would take an answer without rows as the last. Ours have one answer each, and it has rows.
_EMPTY_FINAL = "triton_enable_empty_final_response"


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
        raise NotFound(f"model '{model.name}' does not serve that layer")
    return layer


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


def _not_negative(name: str, parameter: pb.InferParameter) -> int:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise InvalidRequest("mismatch", f"parameter '{name}' must be an int64_param")
    value: int = getattr(parameter, kind)
    if value < 0:
        raise InvalidRequest("mismatch", f"parameter '{name}' must not be negative")
    return value
