"""Answers as serialized messages: a call's, and a stream's."""

from functools import lru_cache

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.requests.codec import VERSION, Cost, InferRequest, Outputs
from gatefuse.link.served_model import ServedModel
from gatefuse.protocol_words import OUTPUTS_LEFT_OUT, STATUS_PARAMETER
from gatefuse.wire import Datatype
from gatefuse_protos import open_inference_pb2 as pb

FINAL_PARAMETER = "triton_final_response"
"""The bool parameter of an answer on a stream: no further answer to its request follows."""

MOST_HEAD_BYTES = 16 * 1024
"""More than an answer is ever longer than its outputs: names, shapes, numbers."""
_INT64 = 2**63 - 1
_HIGHEST_COST = Cost(9e12, 9e12, _INT64, _INT64, _INT64)
"""No cost takes more bytes in an answer."""


def check_answer(request: InferRequest, max_message_bytes: int, frame_bytes: int = 0) -> None:
    """Raises InvalidRequest if the answer could be longer than a message may be, numbers in it included.

    `frame_bytes` is what it travels in: STREAM_FRAME_BYTES on a stream.
    """
    if len(request.outputs) * request.tensor_bytes <= max_message_bytes - MOST_HEAD_BYTES:
        return
    outputs = request.output_bytes
    head_bytes = len(encode(request, (), _HIGHEST_COST)) + sum(map(len, map(_raw_head, outputs)))
    size_bytes = head_bytes + sum(outputs) + frame_bytes
    if size_bytes > max_message_bytes:
        raise InvalidRequest(
            "size",
            f"the answer takes {size_bytes} bytes, more than max_message_bytes ({max_message_bytes}): ask "
            "for fewer outputs or rows",
        )


def encode(request: InferRequest, outputs: Outputs, cost: Cost) -> bytes:
    """The answer as a serialized ModelInferResponse; `outputs` are rows × columns of the request's datatype each."""
    return b"".join(_answer_parts(request, outputs, cost))


def encode_streamed(request: InferRequest, outputs: Outputs, cost: Cost) -> bytes:
    """The answer as a serialized ModelStreamInferResponse, whose only one it is."""
    parts = _answer_parts(request, outputs, cost)
    parts.append(_FINAL)
    parts.insert(0, _STREAMED_ANSWER_TAG + _varint(sum(map(len, parts))))
    return b"".join(parts)


def encode_streamed_error(request_id: str, status: str, text: str) -> bytes:
    """A serialized ModelStreamInferResponse for a request that failed.

    The protocol has a text for it and no status: the name of the gRPC status is in the parameter `status`.
    """
    response = pb.ModelStreamInferResponse(error_message=text)
    answer = response.infer_response
    answer.id = request_id
    answer.parameters[STATUS_PARAMETER].string_param = status
    answer.parameters[FINAL_PARAMETER].bool_param = True
    return response.SerializeToString()


def _answer_parts(request: InferRequest, outputs: Outputs, cost: Cost) -> list[bytes]:
    """A serialized ModelInferResponse in pieces.

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
    return parts


@lru_cache(maxsize=4096)
def _answer_head(
    model: ServedModel, outputs: tuple[int, ...], datatype: Datatype, rows: int, columns: int
) -> bytes:
    response = pb.ModelInferResponse(model_name=model.name, model_version=VERSION)
    for number in outputs:
        name = model.outputs[number]
        response.outputs.add(name=name, datatype=datatype.value, shape=(rows, columns))
    response.parameters["backend"].string_param = model.backend
    if left_out := len(model.outputs) - len(outputs):
        response.parameters[OUTPUTS_LEFT_OUT].int64_param = left_out
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


def _varint(value: int) -> bytes:
    """`value`, not negative, as protobuf writes lengths: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _final() -> bytes:
    response = pb.ModelInferResponse()
    response.parameters[FINAL_PARAMETER].bool_param = True
    return response.SerializeToString()


_FINAL = _final()
_LENGTH_DELIMITED = 2
_STREAMED_ANSWER_TAG = bytes(
    [pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | _LENGTH_DELIMITED]
)
_MOST_LENGTH_BYTES = 5  # no message has 2³¹ bytes or more
STREAM_FRAME_BYTES = len(_STREAMED_ANSWER_TAG) + _MOST_LENGTH_BYTES + len(_FINAL)
"""Bytes that an answer takes on a stream beyond those of a call's, at most."""
