import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from gatefuse.frontend.requests import raw_contents
from gatefuse.frontend.requests.raw_contents import SCAN_FROM_BYTES
from gatefuse_protos import open_inference_pb2 as pb


def _request(*raw: bytes, request_id: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m", id=request_id, raw_input_contents=raw)
    request.inputs.add(name="x", datatype="FP32", shape=[3, 5])
    request.parameters["layer"].int64_param = 2
    request.outputs.add(name="y")
    return request


def _whole(message: bytes) -> pb.ModelInferRequest:
    """What `parse` gives, put together again."""
    request, raw = raw_contents.parse(message)
    if raw is not None:
        assert not request.raw_input_contents
        request.raw_input_contents.extend(map(bytes, raw))
    return request


@pytest.mark.parametrize("size", [0, 1, SCAN_FROM_BYTES - 200, SCAN_FROM_BYTES, 300_001])
def test_nothing_is_lost(size: int) -> None:
    request = _request(b"\x07" * size)
    assert _whole(request.SerializeToString()) == request


def test_several_entries_keep_their_order() -> None:
    request = _request(b"a" * SCAN_FROM_BYTES, b"", b"b" * 7)
    assert _whole(request.SerializeToString()) == request


def test_rows_are_not_copied() -> None:
    message = _request(b"r" * SCAN_FROM_BYTES).SerializeToString()
    _, raw = raw_contents.parse(message)
    assert raw is not None
    assert raw[0].obj is message


def test_fields_may_come_in_any_order() -> None:
    rows = pb.ModelInferRequest(raw_input_contents=[b"r" * SCAN_FROM_BYTES]).SerializeToString()
    rest = _request().SerializeToString()
    assert _whole(rows + rest) == _whole(rest + rows)


def test_unknown_fields_are_skipped() -> None:
    varint, fixed64, fixed32 = b"\xa0\x06\x96\x01", b"\xa9\x06" + b"8" * 8, b"\xb5\x06" + b"4" * 4
    request = _request(b"r" * SCAN_FROM_BYTES)
    parsed = _whole(varint + fixed64 + fixed32 + request.SerializeToString())
    assert list(parsed.raw_input_contents) == list(request.raw_input_contents)
    assert parsed.model_name == "m"


@pytest.mark.parametrize(
    "tail",
    [b"\x3a\xff", b"\x3a\xff\xff\xff\xff\x7f", b"\x3b", b"\x3a" + b"\x80" * 11, b"\xa9\x06123"],
    ids=["no-length", "too-long", "group", "endless-number", "short-fixed"],
)
def test_a_broken_message_is_refused(tail: bytes) -> None:
    with pytest.raises(DecodeError):
        raw_contents.parse(_request(b"r" * SCAN_FROM_BYTES).SerializeToString() + tail)


@given(st.binary(max_size=40))
def test_any_tail_is_a_message_or_refused_as_protobuf_does(tail: bytes) -> None:
    message = _request(b"r" * SCAN_FROM_BYTES).SerializeToString() + tail
    try:
        expected = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            raw_contents.parse(message)
        return
    try:
        parsed = _whole(message)
    except DecodeError:
        return  # stricter: groups, which this message has none of
    assert parsed.SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )
