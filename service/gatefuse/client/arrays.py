"""Arrays to packed rows and back, for both clients: numpy's, those of ml_dtypes, torch's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatefuse.client import tensors
from gatefuse.client.messages import Place, RawResult, Result, Rows, flat_shape
from gatefuse.wire import Datatype, decode, encode, encode_into

Array: TypeAlias = Any
"""A numpy array or a torch tensor, which this package does not import."""

Arrays: TypeAlias = Array | Mapping[str, Array]
"""The rows of the only input, or of each input by its name."""


DatatypeLike: TypeAlias = Datatype | str | Any
"""A datatype's name in upper or lower case, or a dtype of numpy, ml_dtypes or torch."""


class Described(NamedTuple):
    """Arrays that may travel: by name, all of one shape, and what their elements are to be sent as."""

    arrays: Mapping[str, Array]
    shape: tuple[int, int]
    datatype: Datatype

    @property
    def tensor_bytes(self) -> int:
        """Bytes of each as it travels."""
        return math.prod(self.shape) * self.datatype.itemsize

    def packed(self) -> dict[str, Rows]:
        """Their elements as they travel."""
        return {
            name: Rows(_encode(array, self.datatype), self.shape, self.datatype)
            for name, array in self.arrays.items()
        }

    def placed(self, allocate: Callable[[int], Place]) -> dict[str, Rows]:
        """The same, written to the places that `allocate` gives for so many bytes each."""
        rows = {}
        for name, array in self.arrays.items():
            place = allocate(self.tensor_bytes)
            write = tensors.encode_into if tensors.is_tensor(array) else encode_into
            write(array, self.datatype, place.view)
            rows[name] = Rows(place, self.shape, self.datatype)
        return rows


def described(x: Arrays, datatype: DatatypeLike | None) -> Described:
    """Checks arrays that are to travel. One without a name is under the empty name.

    Args:
        x: [..., columns] floats of either byte order; or such arrays by the names of the inputs, all
            of one shape.
        datatype: What travels: a name in upper or lower case, or a dtype; None for the arrays' own type, and FP32 where
            they have several.

    Raises:
        TypeError: An array holds no floats, or is no array.
        ValueError: The datatype is unknown, the shapes differ, or an array is a scalar.
    """
    given = x if isinstance(x, Mapping) else {"": x}
    arrays = {name: _in_native_order(array) for name, array in given.items()}
    if not arrays:
        raise ValueError("no input: pass an array, or a mapping of names to arrays")
    own = {_datatype_of(array) for array in arrays.values()}
    joint = own.pop() if len(own) == 1 else Datatype.FP32
    wanted = joint if datatype is None else _datatype_meant(datatype)
    shapes = {tuple(array.shape) for array in arrays.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ValueError(f"all inputs must have one shape: {listed}")
    return Described(arrays, flat_shape(shapes.pop()), wanted)


def unpacked(raw: RawResult, x: Arrays) -> Result:
    """Returns fresh, writable arrays of the kind, shape and dtype of ``x``; tensors on its device.

    float32 for float64; where several inputs have several types, the one that holds all of them. In
    this machine's byte order, whatever that of ``x`` is.
    """
    like = _joint(list(x.values())) if isinstance(x, Mapping) else x
    read = tensors.decode if tensors.is_tensor(like) else _array
    outputs = {name: read(content, raw.datatype, like) for name, content in raw.contents.items()}
    return Result(outputs, raw.cost)


def _datatype_meant(datatype: DatatypeLike) -> Datatype:
    if isinstance(datatype, str):
        return Datatype.of_name(datatype)
    name = str(datatype).removeprefix("torch.")
    with suppress(TypeError):  # numpy's word for what is none of its types: a dtype of torch
        name = np.dtype(datatype).name
    meant = _BY_DTYPE.get(name)
    if meant is None:
        raise ValueError(
            f"datatype {datatype!r} is none that travels: use FP32, FP16 or BF16, or the dtype of one"
        )
    return meant


_BY_DTYPE = {"float32": Datatype.FP32, "float16": Datatype.FP16, "bfloat16": Datatype.BF16}


def _datatype_of(array: Array) -> Datatype:
    if tensors.is_tensor(array):
        return tensors.datatype_of(array)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"pass a numpy array or a torch tensor, not {type(array).__name__}")
    return Datatype.of_array(array.dtype)


def _encode(array: Array, datatype: Datatype) -> bytes:
    return tensors.encode(array, datatype) if tensors.is_tensor(array) else encode(array, datatype)


def _joint(arrays: Sequence[Array]) -> Array:
    """An array like all of them: a tensor if any is one, float32 if their types differ."""
    like = next(filter(tensors.is_tensor, arrays), arrays[0])
    if len({_type_name(array) for array in arrays}) == 1:
        return like
    return like.float() if tensors.is_tensor(like) else np.empty(like.shape, np.float32)


def _array(content: bytes | memoryview, datatype: Datatype, like: NDArray[Any]) -> NDArray[Any]:
    if datatype is Datatype.BF16 and like.dtype.name == "bfloat16":
        return np.frombuffer(content, like.dtype).reshape(like.shape).copy()
    decoded = decode(content, datatype, like.shape)
    dtype = _native(like.dtype)
    if dtype == np.float64:
        dtype = np.dtype(np.float32)
    # BF16 is decoded into fresh memory; the others are still the message's own bytes.
    return decoded.astype(dtype, copy=not decoded.flags.writeable)


def _in_native_order(array: Array) -> Array:
    is_swapped = isinstance(array, np.ndarray) and not array.dtype.isnative
    return array.astype(_native(array.dtype)) if is_swapped else array


def _type_name(array: Array) -> str:
    """The name of an element type, which tensors and arrays of either byte order share."""
    return str(array.dtype).removeprefix("torch.") if tensors.is_tensor(array) else array.dtype.name


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same type in this machine's byte order, which is what packs and converts."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")
