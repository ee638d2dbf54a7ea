"""Tensor elements as they travel: FP32, FP16, BF16, little-endian, and how to convert them.

numpy has no bfloat16, so its 16 bits are handled as integers here: a bfloat16 is the upper half of
a float32. Values are rounded to the nearest, ties to even; NaN stays NaN, infinity stays infinity,
and what is too big for the target becomes infinity. Every conversion between the two 16-bit types
goes through float32, which holds both exactly.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]

_BF16_SHIFT = 16
_BF16_QUIET_BIT = 0x0040
_FP32_INF_BITS = 0x7F800000
_FP32_NEGATIVE_INF_BITS = 0xFF800000
# The rounding needs one temporary. With blocks of 16 Ki elements it is 64 KiB: it stays in the
# second-level cache, and malloc takes it from the heap, where a bigger one would be mapped and
# faulted in at each call.
_BLOCK = 16 * 1024


class Datatype(StrEnum):
    """An element type of the protocol that Gatefuse serves; the value is its name on the wire."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"

    @classmethod
    def parse(cls, name: str) -> Datatype:
        """Returns the datatype of that name; raises ValueError for any other."""
        datatype = _BY_NAME.get(name)
        if datatype is None:
            raise ValueError(f"datatype {name[:32]!r} is not one of {', '.join(_BY_NAME)}")
        return datatype

    @classmethod
    def of_name(cls, name: str) -> Datatype:
        """Returns the datatype that a person means, in upper or lower case; raises ValueError for none."""
        return cls.parse(name.upper())

    @classmethod
    def of_array(cls, dtype: np.dtype[Any]) -> Datatype:
        """Returns the datatype that carries such an array's values.

        float64 travels as FP32. A dtype named bfloat16 (ml_dtypes defines it) is BF16.
        Raises TypeError for anything else.
        """
        datatype = _BY_ARRAY_DTYPE.get(dtype.name)
        if datatype is None:
            raise TypeError(
                f"arrays of {dtype.name} cannot be sent: use {', '.join(_BY_ARRAY_DTYPE)}"
            )
        return datatype

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_BY_NAME = {datatype.value: datatype for datatype in Datatype}
_ITEMSIZE = {Datatype.FP32: 4, Datatype.FP16: 2, Datatype.BF16: 2}
_BY_ARRAY_DTYPE = {
    "float32": Datatype.FP32,
    "float16": Datatype.FP16,
    "bfloat16": Datatype.BF16,
    "float64": Datatype.FP32,
}
# BF16 as the integers that hold its bits.
_STORAGE: dict[Datatype, np.dtype[Any]] = {
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.BF16: np.dtype("<u2"),
}


def convert(
    buffer: Buffer, source: Datatype, target: Datatype, out: Buffer | None = None
) -> NDArray[np.uint8]:
    """Converts packed elements from one datatype to another.

    Args:
        buffer: Packed elements of ``source``; its length must be a multiple of the element's size.
        source: What ``buffer`` holds.
        target: What the result holds.
        out: Writable memory of exactly the result's size, to write into.

    Returns:
        The result's bytes, one-dimensional: ``out`` if given; ``buffer`` itself, not copied, if
        nothing has to be converted; else fresh memory.
    """
    elements = np.frombuffer(buffer, _STORAGE[source])
    if source is target and out is None:
        return elements.view(np.uint8)
    result = (
        np.empty(elements.size, _STORAGE[target])
        if out is None
        else np.frombuffer(out, _STORAGE[target])
    )
    if result.size != elements.size:
        raise ValueError(f"out holds {result.size} elements, not {elements.size}")
    if source is target:
        result[:] = elements
    elif target is Datatype.FP32:
        _widen(elements, source, result)
    elif source is Datatype.FP32:
        _narrow(elements, target, result)
    else:
        wide = np.empty(elements.size, _STORAGE[Datatype.FP32])
        _widen(elements, source, wide)
        _narrow(wide, target, result)
    return result.view(np.uint8)


def encode(array: NDArray[Any], datatype: Datatype | None = None) -> bytes:
    """Returns the array's elements as they travel, row-major.

    Args:
        array: float32, float16, float64 (rounded to float32 first) or a dtype named bfloat16.
        datatype: What to send; None sends the array's own type.
    """
    source = Datatype.of_array(array.dtype)
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    packed = np.ascontiguousarray(array)
    if datatype is None or datatype is source:
        return packed.tobytes()
    return convert(packed.reshape(-1).view(np.uint8), source, datatype).tobytes()


def encode_into(array: NDArray[Any], datatype: Datatype, out: Buffer) -> None:
    """Writes the array's elements as they travel into memory of exactly their size; otherwise as ``encode``."""
    source = Datatype.of_array(array.dtype)
    if datatype is source and array.dtype != np.float64:
        np.frombuffer(out, array.dtype).reshape(array.shape)[...] = array
        return
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    packed = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    convert(packed, source, datatype, out=out)


def decode(buffer: Buffer, datatype: Datatype, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns the elements of ``buffer`` as an array: float32 for FP32 and BF16, float16 for FP16.

    FP32 and FP16 are read in place: the array is as writable as ``buffer`` is, and keeps it alive.
    Raises ValueError if the buffer does not hold exactly ``shape``.
    """
    if datatype is Datatype.BF16:
        return convert(buffer, datatype, Datatype.FP32).view(np.float32).reshape(shape)
    return np.frombuffer(buffer, _STORAGE[datatype]).reshape(shape)


def _widen(elements: NDArray[Any], source: Datatype, result: NDArray[Any]) -> None:
    if source is Datatype.BF16:
        np.left_shift(elements, _BF16_SHIFT, out=result.view(np.uint32), dtype=np.uint32)
    else:
        result[:] = elements


def _narrow(elements: NDArray[Any], target: Datatype, result: NDArray[Any]) -> None:
    if target is Datatype.FP16:
        # Too big for FP16 is infinity by definition here, so numpy's warning would only be noise.
        with np.errstate(over="ignore"):
            result[:] = elements
        return
    bits = elements.view(np.uint32)
    scratch = np.empty(min(bits.size, _BLOCK), np.uint32)
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK]
        _round_to_bf16(block, scratch[: block.size], result[start : start + _BLOCK])


def _round_to_bf16(
    bits: NDArray[np.uint32], scratch: NDArray[np.uint32], result: NDArray[np.uint16]
) -> None:
    # Adding 0x7FFF, and one more if the kept part is odd, carries into the kept part exactly when
    # the dropped part is more than half of its unit, or half and the kept part odd: round to
    # nearest, ties to even.
    np.right_shift(bits, _BF16_SHIFT, out=scratch)
    scratch &= 1
    scratch += 0x7FFF
    scratch += bits
    scratch >>= _BF16_SHIFT
    result[:] = scratch
    # The carry can turn a NaN into infinity or zero. As integers NaNs are the largest: the positive
    # ones among the signed, the negative ones among the unsigned. So two maxima tell whether there
    # is any, without a temporary.
    if bits.max() > _FP32_NEGATIVE_INF_BITS or bits.view(np.int32).max() > _FP32_INF_BITS:
        nan = (bits & 0x7FFFFFFF) > _FP32_INF_BITS
        result[nan] = (bits[nan] >> _BF16_SHIFT) | _BF16_QUIET_BIT
