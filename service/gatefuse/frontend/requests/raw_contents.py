"""Reads a serialized ModelInferRequest without copying its rows.

protobuf copies a bytes field into the message, and again when Python reads it. In a request of a megabyte that costs
more than everything else the frontend does, so its raw_input_contents are left where gRPC put them.
"""

from google.protobuf.message import DecodeError

from gatefuse_protos import open_inference_pb2 as pb

# Below this protobuf's two copies cost less than looking for the field here.
SCAN_FROM_BYTES = 64 * 1024

_RAW_FIELD = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Parsed = tuple[pb.ModelInferRequest, list[memoryview] | None]
"""A request, and its raw_input_contents if they were left out of the message."""


def parse(data: bytes) -> Parsed:
    """Parses a request; a large one without copying its rows.

    Raises:
        DecodeError: `data` is not a ModelInferRequest.
    """
    if len(data) < SCAN_FROM_BYTES:
        return pb.ModelInferRequest.FromString(data), None
    rest, raw = _split(memoryview(data))
    return pb.ModelInferRequest.FromString(rest), raw


def _split(data: memoryview) -> tuple[bytes, list[memoryview]]:
    """Parts a message into everything but raw_input_contents, and those."""
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    kept_from = position = 0
    while position < len(data):
        field_start = position
        tag, position = _read_varint(data, position)
        content = position
        position, content = _skip(data, tag & 7, position)
        if tag == _RAW_FIELD << 3 | _BYTES:
            rest.append(data[kept_from:field_start])
            raw.append(data[content:position])
            kept_from = position
    rest.append(data[kept_from:])
    return b"".join(rest), raw


def _skip(data: memoryview, wire_type: int, position: int) -> tuple[int, int]:
    """Where a field ends, and where its content begins."""
    content = position
    if wire_type == _BYTES:
        length, content = _read_varint(data, position)
        position = content + length
    elif wire_type == _VARINT:
        _, position = _read_varint(data, position)
    elif wire_type == _FIXED64:
        position += 8
    elif wire_type == _FIXED32:
        position += 4
    else:
        raise DecodeError(f"wire type {wire_type} does not occur in this message")
    if position > len(data):
        raise DecodeError("a field is longer than the message")
    return position, content


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise DecodeError("the message ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError("a number is longer than 10 bytes")
