"""Arrays to packed rows and back, for both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatefuse.messages import RawResult, Result, Rows, flat_shape
from gatefuse.wire import Datatype, decode, encode

Arrays: TypeAlias = NDArray[Any] | Mapping[str, NDArray[Any]]
"""The rows of the only input, or of each input by its name."""


def packed(x: Arrays, datatype: Datatype | str | None) -> Rows | dict[str, Rows]:
    """Returns arrays as they travel.

    Args:
        x: [..., columns] floats of either byte order; or such arrays by the names of the inputs, all
            of one shape.
        datatype: What travels, in upper or lower case; None for the arrays' own type, and FP32 where
            they have several.

    Raises:
        TypeError: An array holds no floats.
        ValueError: The datatype is unknown, the shapes differ, or an array is a scalar.
    """
    given = x if isinstance(x, Mapping) else {"": x}
    arrays = {name: array.astype(_native(array.dtype), copy=False) for name, array in given.items()}
    if not arrays:
        raise ValueError("no input: pass an array, or a mapping of names to arrays")
    if datatype is None:
        own = {Datatype.of_array(array.dtype) for array in arrays.values()}
        wanted = own.pop() if len(own) == 1 else Datatype.FP32
    else:
        wanted = Datatype.of_name(datatype)
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ValueError(f"all inputs must have one shape: {listed}")
    shape = flat_shape(shapes.pop())
    rows = {name: Rows(encode(array, wanted), shape, wanted) for name, array in arrays.items()}
    return rows if isinstance(x, Mapping) else rows[""]


def unpacked(raw: RawResult, x: Arrays) -> Result:
    """Returns fresh, writable arrays of the shape and dtype of ``x``.

    float32 for float64; where several inputs have several types, the one that holds all of them. In
    this machine's byte order, whatever that of ``x`` is.
    """
    if not isinstance(x, Mapping):
        like = x
    else:
        arrays = list(x.values())
        one = len({_native(array.dtype) for array in arrays}) == 1
        like = arrays[0] if one else np.empty(arrays[0].shape, np.float32)
    outputs = {name: _array(content, raw.datatype, like) for name, content in raw.contents.items()}
    return Result(outputs, raw.cost)


def _array(content: bytes, datatype: Datatype, like: NDArray[Any]) -> NDArray[Any]:
    if datatype is Datatype.BF16 and like.dtype.name == "bfloat16":
        return np.frombuffer(content, like.dtype).reshape(like.shape).copy()
    decoded = decode(content, datatype, like.shape)
    dtype = _native(like.dtype)
    if dtype == np.float64:
        dtype = np.dtype(np.float32)
    # BF16 is decoded into fresh memory; the others are still the message's own bytes.
    return decoded.astype(dtype, copy=not decoded.flags.writeable)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same type in this machine's byte order, which is what packs and converts."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")
