"""Messages that somebody broke: good ModelInfer requests with one to three things changed, or their bytes damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from gatefuse_protos import open_inference_pb2 as pb

COLUMNS = 64
MODELS = ("identity", "pair", "llama-ffn")
LAYERS = 4
HIDDEN = 256

Draw: TypeAlias = random.Random
Request: TypeAlias = pb.ModelInferRequest

_INTEGERS = (0, 1, -1, 2, 63, 65, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
_TEXTS = (
    "",
    " ",
    "x",
    "identity",
    "Identity",
    "a" * 5000,
    "\0",
    "ä\n\t",
    "../../etc/passwd",
    "%s%n",
    "🦜",
)
_DATATYPES = ("FP32", "BF16", "FP16", "FP64", "INT8", "BYTES", "BOOL", "fp32", "", "FP8", "F" * 300)
_PARAMETERS = (
    "layer", "priority", "timeout", "deterministic", "sequence_id", "sequence_start", "binary_data_output",
    "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "headers", "",
)  # fmt: skip
_CONTENTS = ("fp32_contents", "int_contents", "bool_contents", "bytes_contents", "fp64_contents")


def good(draw: Draw) -> Request:
    """A request that is answered."""
    model = draw.choice(MODELS)
    rows = draw.randint(1, 5)
    request = pb.ModelInferRequest(model_name=model, id=str(draw.randrange(10**6)))
    if model == "llama-ffn":
        request.inputs.add(name="hidden_states", datatype="BF16", shape=[rows, HIDDEN])
        request.raw_input_contents.append(bytes(rows * HIDDEN * 2))
        request.parameters["layer"].int64_param = draw.randrange(LAYERS)
        return request
    for name in ("x",) if model == "identity" else ("a", "b"):
        request.inputs.add(name=name, datatype="FP32", shape=[rows, COLUMNS])
        request.raw_input_contents.append(draw.randbytes(rows * COLUMNS * 4))
    return request


def _parameter(parameters: Any, draw: Draw) -> None:
    value = parameters[draw.choice(_PARAMETERS)]
    kind = draw.randrange(5)
    if kind == 0:
        value.int64_param = draw.choice(_INTEGERS)
    elif kind == 1:
        value.string_param = draw.choice(_TEXTS)
    elif kind == 2:
        value.bool_param = draw.random() < 0.5
    elif kind == 3:
        value.double_param = draw.choice((0.0, -1.5, float("nan"), float("inf"), 1e308))
    else:
        value.uint64_param = draw.choice((0, 1, 2**64 - 1))


def _input(request: Request, draw: Draw) -> Any:
    return draw.choice(request.inputs) if request.inputs else request.inputs.add()


def _shape(request: Request, draw: Draw) -> None:
    shape = _input(request, draw).shape
    kind = draw.randrange(4)
    if kind == 0 and shape:
        shape[draw.randrange(len(shape))] = draw.choice(_INTEGERS)
    elif kind == 1:
        shape.append(draw.choice(_INTEGERS))
    elif kind == 2 and shape:
        shape.pop()
    else:
        shape.extend([1] * draw.randint(1, 3000))


def _raw(request: Request, draw: Draw) -> None:
    raw = request.raw_input_contents
    kind = draw.randrange(5)
    if kind == 0 or not raw:
        raw.append(draw.randbytes(draw.randrange(600)))
    elif kind == 1:
        raw.pop()
    elif kind == 2:
        raw[0] = raw[0][: draw.randrange(len(raw[0]) + 1)]
    elif kind == 3:
        raw[0] += draw.randbytes(draw.randint(1, 9))
    else:
        raw[:] = [b""] * draw.randint(1, 500)


def _typed(request: Request, draw: Draw) -> None:
    contents = _input(request, draw).contents
    field = draw.choice(_CONTENTS)
    values = [b"x"] * 7 if field == "bytes_contents" else [1] * draw.choice((1, COLUMNS, 1000))
    getattr(contents, field).extend(values)
    if draw.random() < 0.7:
        del request.raw_input_contents[:]


def _outputs(request: Request, draw: Draw) -> None:
    for _ in range(draw.choice((1, 1, 2, 300))):
        output = request.outputs.add(name=draw.choice(("y", "z", *_TEXTS)))
        if draw.random() < 0.3:
            _parameter(output.parameters, draw)


def _model(request: Request, draw: Draw) -> None:
    request.model_name = draw.choice((*_TEXTS, *MODELS))


def _version(request: Request, draw: Draw) -> None:
    request.model_version = draw.choice(("1", "2", "latest", *_TEXTS))


def _identity(request: Request, draw: Draw) -> None:
    request.id = draw.choice((*_TEXTS, "i" * 100_000))


def _name(request: Request, draw: Draw) -> None:
    _input(request, draw).name = draw.choice(("a", "b", *_TEXTS))


def _datatype(request: Request, draw: Draw) -> None:
    _input(request, draw).datatype = draw.choice(_DATATYPES)


def _more_inputs(request: Request, draw: Draw) -> None:
    for _ in range(draw.choice((1, 2, 200))):
        request.inputs.add().CopyFrom(_input(request, draw))


def _no_inputs(request: Request, draw: Draw) -> None:
    del request.inputs[:]


def _request_parameter(request: Request, draw: Draw) -> None:
    for _ in range(draw.choice((1, 1, 5))):
        _parameter(request.parameters, draw)


def _input_parameter(request: Request, draw: Draw) -> None:
    _parameter(_input(request, draw).parameters, draw)


CHANGES: Sequence[Callable[[Request, Draw], None]] = (
    _model, _version, _identity, _name, _datatype, _shape, _raw, _typed, _outputs, _more_inputs, _no_inputs,
    _request_parameter, _input_parameter,
)  # fmt: skip


def damaged(message: bytes, draw: Draw) -> bytes:
    """The bytes of a message with some flipped, left out, said twice or put in."""
    found = bytearray(message)
    for _ in range(draw.randint(1, 4)):
        # What describes the rows is in front and behind; the rows may hold anything.
        size = len(found)
        place = draw.choice((draw.randrange(size), draw.randrange(min(size, 80)))) if size else 0
        end = min(size, place + draw.randint(1, 40))
        kind = draw.randrange(5)
        if kind == 0 and size:
            found[place] = draw.randrange(256)
        elif kind == 1:
            del found[place:end]
        elif kind == 2:
            found[place:place] = found[place:end]
        elif kind == 3:
            found[place:place] = draw.randbytes(draw.randint(1, 12))
        else:
            del found[place:]
    return bytes(found)


def messages(count: int, seed: int) -> Iterator[bytes]:
    """Requests, two thirds of them changed by field and a third by byte."""
    draw = random.Random(seed)
    for _ in range(count):
        request = good(draw)
        if draw.random() < 0.33:
            yield damaged(request.SerializeToString(), draw)
            continue
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            draw.choice(CHANGES)(request, draw)
        yield request.SerializeToString()


def parsed(message: bytes) -> Request | None:
    """The request that a message is, or None."""
    try:
        return pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return None


def allowed(request: Request | None) -> set[grpc.StatusCode]:
    """How a request may end: what it is decides, and never INTERNAL, UNKNOWN or UNAVAILABLE."""
    code = grpc.StatusCode
    if request is None:
        return {code.INVALID_ARGUMENT}
    if request.model_name not in MODELS:
        # Some limits hold for every model, and are looked at first.
        return {code.NOT_FOUND, code.INVALID_ARGUMENT}
    if request.model_version not in ("", "1"):
        return {code.NOT_FOUND, code.INVALID_ARGUMENT}
    if not request.inputs:
        return {code.INVALID_ARGUMENT, code.NOT_FOUND, code.UNIMPLEMENTED}
    # A layer may not be found, sequences and shared memory are not there, a deadline may come from a parameter, and a
    # queue may be full.
    return {
        code.OK,
        code.INVALID_ARGUMENT,
        code.NOT_FOUND,
        code.UNIMPLEMENTED,
        code.DEADLINE_EXCEEDED,
        code.RESOURCE_EXHAUSTED,
    }
