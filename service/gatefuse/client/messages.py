"""Requests, answers and errors as both clients, the torch module and the load test see them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import grpc
import numpy as np

from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

_T = TypeVar("_T")

ParameterValue: TypeAlias = bool | int | float | str | np.generic
"""What a request's parameter may hold; of numpy's scalars those that are one of the others."""

# A batch of hidden states is easily more than gRPC's default of 4 MiB; the server has its own
# limit, in rows. A pool of its own gives each channel its own connection, where gRPC would share
# one between all channels to the same address. By default gRPC gives a host that swallows packets 20 s
# to accept a connection, and looks after a server that was away only every two minutes in the end.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class InferenceError(Exception):
    """A call that was not answered.

    Attributes:
        code: The gRPC status, for example ``grpc.StatusCode.NOT_FOUND``.
        details: The server's text, or gRPC's own if no server answered.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        """Keeps both; the exception's text holds both."""
        super().__init__(code, details)
        self.code = code
        self.details = details

    def __str__(self) -> str:
        """Returns the status' name and the text."""
        return f"{self.code.name}: {self.details}"

    @classmethod
    def of(cls, error: Any) -> InferenceError:
        """Makes one from what grpc or grpc.aio raised."""
        return cls(error.code(), error.details() or "no details")

    def false_if_unanswered(self) -> bool:
        """Returns False, what a question about its health answers of one that is away or hangs; else raises itself."""
        if self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return False
        raise self


# Tracebacks show the name by which a user imports it.
InferenceError.__module__ = "gatefuse"


@dataclass(frozen=True, slots=True)
class Cost:
    """What the device batches that a request rode in cost, from the server's own accounting.

    A request shares its batches with others: ``share`` is its part. All zero if the server does not
    tell.
    """

    queue_us: int = 0
    compute_us: int = 0
    batch_rows: int = 0
    kernel_launches: int = 0
    bytes_moved: int = 0
    backend: str = ""

    def share(self, rows: int) -> float:
        """Returns the part of the batches that a request of ``rows`` rows was: 0 to 1."""
        return rows / self.batch_rows if self.batch_rows else 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """An answer: each output has the shape of the inputs, and their dtype (float32 for float64).

    Outputs are of the inputs' kind: numpy arrays, or torch tensors on the same device.
    """

    outputs: Mapping[str, Any]
    cost: Cost

    @property
    def output(self) -> Any:
        """The only output. Raises ValueError if there are several."""
        return _only(self.outputs)


@dataclass(frozen=True, slots=True)
class RawResult:
    """An answer as it travelled: for each output its packed elements, all of ``datatype``."""

    contents: Mapping[str, bytes | memoryview]
    datatype: Datatype
    cost: Cost

    @property
    def content(self) -> bytes | memoryview:
        """The only output's elements. Raises ValueError if there are several."""
        return _only(self.contents)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in shared memory that the server knows as ``region``."""

    region: str
    offset: int
    view: memoryview

    def describe(self, tensor: Any) -> None:
        """Says so in the parameters of an input or of a requested output."""
        parameters = tensor.parameters
        parameters["shared_memory_region"].string_param = self.region
        parameters["shared_memory_byte_size"].int64_param = len(self.view)
        parameters["shared_memory_offset"].int64_param = self.offset


@dataclass(frozen=True, slots=True)
class Rows:
    """The packed rows of one input, themselves or where they are: ``shape`` is [M, columns]."""

    content: bytes | Place
    shape: tuple[int, int]
    datatype: Datatype

    def packed(self) -> bytes:
        """The rows themselves, a copy where they are in shared memory."""
        return bytes(self.content.view) if isinstance(self.content, Place) else self.content


def method(name: str) -> str:
    """Returns the path of one of the protocol's methods."""
    return f"/{pb.SERVICE_NAME}/{name}"


def flat_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns [M, columns] for rows with any leading dimensions; one dimension is one row.

    Raises ValueError for a scalar.
    """
    if not shape:
        raise ValueError("a scalar has no rows: pass an array of shape [..., columns]")
    return math.prod(shape[:-1]), shape[-1]


def infer_request(
    model: str,
    inputs: Mapping[str, Rows],
    layer: SupportsIndex | None = None,
    outputs: Sequence[str] | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    places: Mapping[str, Place] | None = None,
) -> pb.ModelInferRequest:
    """Returns the request that runs ``model`` on named inputs; ``outputs`` None asks for all of them.

    ``places`` has the outputs that the server is to write to shared memory.

    Raises TypeError for a parameter that is none of the protocol's types, and for ``outputs`` that
    are one string: its letters are hardly the names.
    """
    if isinstance(outputs, str):
        raise TypeError(f"outputs are a list of names, such as [{outputs!r}], not {outputs!r}")
    request = pb.ModelInferRequest(model_name=model)
    for name, rows in inputs.items():
        tensor = request.inputs.add(name=name, datatype=rows.datatype.value, shape=rows.shape)
        if isinstance(rows.content, Place):
            rows.content.describe(tensor)
        else:
            request.raw_input_contents.append(rows.content)
    for name in outputs or ():
        wanted = request.outputs.add(name=name)
        if places:
            places[name].describe(wanted)
    if layer is not None:
        request.parameters["layer"].int64_param = operator.index(layer)
    for name, given in (parameters or {}).items():
        # numpy's numbers are as good as Python's.
        value = given.item() if isinstance(given, np.generic) else given
        setattr(request.parameters[name], _parameter_field(name, value), value)
    return request


def _parameter_field(name: str, value: ParameterValue) -> str:
    # bool first: it is an int too.
    for kind, field_name in _PARAMETER_FIELDS.items():
        if isinstance(value, kind):
            return field_name
    raise TypeError(
        f"parameter {name!r} must be bool, int, float or str, not {type(value).__name__}"
    )


_PARAMETER_FIELDS = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
}


def raw_result(
    response: pb.ModelInferResponse,
    shape: tuple[int, int],
    places: Mapping[str, Place] | None = None,
) -> RawResult:
    """Returns the outputs of an answer for rows of ``shape``; those in ``places`` are there, and read-only here.

    Raises InferenceError with INTERNAL if they are not packed tensors of that shape and one datatype.
    """
    outputs, raw = response.outputs, response.raw_output_contents
    if not outputs or len(outputs) != len(raw):
        raise _broken("the answer is not one raw content for each tensor")
    try:
        datatype = Datatype.parse(outputs[0].datatype)
    except ValueError as error:
        raise _broken(f"the answer's {error}") from error
    contents: dict[str, bytes | memoryview] = {}
    for output, sent in zip(outputs, raw, strict=True):
        content = (
            places[output.name].view.toreadonly() if places and output.name in places else sent
        )
        if tuple(output.shape) != shape:
            raise _broken(f"the answer has shape {list(output.shape)}, not {list(shape)}")
        if output.datatype != datatype:
            raise _broken(f"the answer has both {datatype} and {output.datatype[:32]!r}")
        if len(content) != shape[0] * shape[1] * datatype.itemsize:
            raise _broken(f"the answer's {len(content)} bytes are not {list(shape)} {datatype}")
        contents[output.name] = content
    return RawResult(contents, datatype, cost_of(response))


def _broken(text: str) -> InferenceError:
    return InferenceError(grpc.StatusCode.INTERNAL, text)


def cost_of(response: pb.ModelInferResponse) -> Cost:
    """Returns what the response's parameters say about the request's cost."""
    parameters = response.parameters
    if "batch_rows" not in parameters:
        return Cost()
    return Cost(
        queue_us=parameters["queue_us"].int64_param,
        compute_us=parameters["compute_us"].int64_param,
        batch_rows=parameters["batch_rows"].int64_param,
        kernel_launches=parameters["kernel_launches"].int64_param,
        bytes_moved=parameters["bytes_moved"].int64_param,
        backend=parameters["backend"].string_param,
    )


def _only(outputs: Mapping[str, _T]) -> _T:
    if len(outputs) != 1:
        raise ValueError(f"there are {len(outputs)} outputs ({', '.join(outputs)}): name one")
    return next(iter(outputs.values()))
