"""Conversions on the wire, against torch's and against exact arithmetic."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatefuse.wire import Datatype, convert, decode, encode

FP32, FP16, BF16 = Datatype.FP32, Datatype.FP16, Datatype.BF16
# Longer than one block of the rounding loop, and no multiple of it.
LONG = 3 * 16 * 1024 + 17


def _to_bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return convert(values.view(np.uint8), FP32, BF16).view(np.uint16)


def _torch_bf16_bits(values: NDArray[np.float32]) -> NDArray[np.int16]:
    bits: NDArray[np.int16] = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    return bits


def _bits(*patterns: int) -> NDArray[np.float32]:
    return np.array(patterns, np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("name", "itemsize"), [("FP32", 4), ("FP16", 2), ("BF16", 2)], ids=["fp32", "fp16", "bf16"]
)
def test_datatype_names_and_sizes(name: str, itemsize: int) -> None:
    datatype = Datatype.parse(name)
    assert datatype == name
    assert datatype.itemsize == itemsize


@pytest.mark.parametrize("name", ["", "fp32", "FP64", "BYTES", "INT8", "X" * 1000])
def test_unknown_datatype_is_refused_with_a_short_text(name: str) -> None:
    with pytest.raises(ValueError, match="is not one of FP32, FP16, BF16") as caught:
        Datatype.parse(name)
    assert len(str(caught.value)) < 100


def test_one_hundredth_twice_is_rounded_and_not_truncated() -> None:
    # The sum of two hundredths in bfloat16: 0.0200195 when both are rounded, 0.01989746 when
    # truncated.
    hundredth = decode(encode(np.array([0.01], np.float32), BF16), BF16, (1,))
    total = decode(encode(hundredth + hundredth, BF16), BF16, (1,))
    assert total[0] == np.float32(0.02001953125)


def test_every_bf16_pattern_survives_the_round_trip() -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    wide = convert(patterns.view(np.uint8), BF16, FP32)
    np.testing.assert_array_equal(
        wide.view(np.uint32), patterns.astype(np.uint32) << 16, strict=True
    )
    back = convert(wide, FP32, BF16).view(np.uint16)
    quiet = np.where(np.isnan(wide.view(np.float32)), patterns | 0x0040, patterns)
    np.testing.assert_array_equal(back, quiet.astype(np.uint16), strict=True)


def test_every_tie_and_its_neighbours_round_as_torch_does() -> None:
    upper = np.arange(65536, dtype=np.uint32) << 16
    finite = upper[(upper & 0x7F800000) != 0x7F800000]
    for lower in (0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (finite | lower).view(np.float32)
        np.testing.assert_array_equal(
            _to_bf16_bits(values).view(np.int16), _torch_bf16_bits(values)
        )


def test_random_bit_patterns_round_as_torch_does() -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, LONG, np.uint32)
    values = patterns.view(np.float32)
    number = ~np.isnan(values)
    assert 0 < np.count_nonzero(~number) < LONG
    bits = _to_bf16_bits(values)
    np.testing.assert_array_equal(bits.view(np.int16)[number], _torch_bf16_bits(values)[number])
    assert np.isnan(decode(bits, BF16, (LONG,))[~number]).all()


@pytest.mark.parametrize("position", [0, 16 * 1024 - 1, 16 * 1024, LONG - 1])
@pytest.mark.parametrize("pattern", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_one_nan_among_many_numbers_stays_nan_and_quiet(pattern: int, position: int) -> None:
    values = np.ones(LONG, np.float32)
    values[position] = _bits(pattern)[0]
    bits = _to_bf16_bits(values)
    assert bits[position] & 0x7FC0 == 0x7FC0
    assert bits[position] >> 15 == pattern >> 31
    assert np.count_nonzero(bits != 0x3F80) == 1


def test_infinities_zeros_and_overflow() -> None:
    values = _bits(0x7F800000, 0xFF800000, 0x00000000, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF)
    np.testing.assert_array_equal(
        _to_bf16_bits(values), np.array([0x7F80, 0xFF80, 0x0000, 0x8000, 0x7F80, 0xFF80], np.uint16)
    )


def test_fp16_overflow_is_infinity_without_a_warning() -> None:
    values = np.array([65504, 65520, -1e30, np.nan, 1e-8], np.float32)
    half = convert(values.view(np.uint8), FP32, FP16).view(np.float16)
    np.testing.assert_array_equal(half, np.array([65504, np.inf, -np.inf, np.nan, 0], np.float16))


def test_sixteen_bit_types_convert_as_torch_does() -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    for source, target, torch_source, torch_target in (
        (FP16, BF16, torch.float16, torch.bfloat16),
        (BF16, FP16, torch.bfloat16, torch.float16),
    ):
        bits = torch.from_numpy(patterns.view(np.int16)).view(torch_source)
        expected = bits.to(torch_target)
        actual = torch.from_numpy(convert(patterns.view(np.uint8), source, target)).view(
            torch_target
        )
        assert torch.equal(actual.isnan(), bits.isnan())
        number = ~bits.isnan()
        assert torch.equal(actual[number].view(torch.int16), expected[number].view(torch.int16))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_bf16_is_the_nearest_and_even_in_a_tie(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    bits = _to_bf16_bits(values)
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(bits, expected)


@pytest.mark.parametrize("target", list(Datatype))
@pytest.mark.parametrize("source", list(Datatype))
def test_convert_into_given_memory_equals_fresh_memory(source: Datatype, target: Datatype) -> None:
    elements = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    packed = encode(elements, source)
    memory = bytearray(b"\xaa" * (1000 * target.itemsize + 8))
    result = convert(packed, source, target, memoryview(memory)[4:-4])
    assert bytes(memory[4:-4]) == convert(packed, source, target).tobytes() == result.tobytes()
    assert memory[:4] == memory[-4:] == b"\xaa" * 4


def test_same_datatype_is_not_copied() -> None:
    packed = bytearray(encode(np.ones(4, np.float32)))
    same = convert(packed, FP32, FP32)
    packed[0] = 7
    assert same[0] == 7


def test_wrong_size_of_given_memory_is_an_error() -> None:
    with pytest.raises(ValueError, match="out holds 3 elements, not 4"):
        convert(bytes(16), FP32, BF16, bytearray(6))


@pytest.mark.parametrize("datatype", list(Datatype))
def test_no_elements(datatype: Datatype) -> None:
    assert encode(np.empty((0, 8), np.float32), datatype) == b""
    assert decode(b"", datatype, (0, 8)).shape == (0, 8)
    for source in Datatype:
        assert convert(b"", source, datatype).size == 0


def test_encode_takes_views_and_bfloat16_and_float64() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert encode(values.T) == np.ascontiguousarray(values.T).tobytes()
    assert encode(values[:, ::2]) == np.array([0, 2, 4, 6, 8, 10], np.float32).tobytes()
    assert encode(values.astype(ml_dtypes.bfloat16)) == encode(values, BF16)
    assert encode(values.astype(np.float64)) == values.tobytes()
    assert encode(np.array([1e300], np.float64)) == np.array([np.inf], np.float32).tobytes()
    assert encode(values.astype(np.float16), BF16) == encode(values, BF16)


@pytest.mark.parametrize("dtype", [np.int32, np.complex64, np.bool_])
def test_arrays_that_are_no_floats_are_refused(dtype: type[np.generic]) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        encode(np.zeros(2, dtype))


def test_decode_gives_the_shape_and_refuses_another_size() -> None:
    packed = encode(np.arange(6, dtype=np.float32), FP16)
    np.testing.assert_array_equal(
        decode(packed, FP16, (2, 3)), np.arange(6, dtype=np.float16).reshape(2, 3), strict=True
    )
    with pytest.raises(ValueError, match="reshape"):
        decode(packed, FP16, (2, 4))
