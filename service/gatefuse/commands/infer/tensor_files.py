"""Tensors in .npy and .safetensors files, BF16 included, without torch and without ml_dtypes.

BF16 in a .npy file is two bytes an element without a type (V2): numpy's own way to store arrays of ml_dtypes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatefuse.commands.loadtest.tensors import TensorFile
from gatefuse.wire import Datatype, decode, encode

_UNTYPED_PAIR = np.dtype("V2")
_SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array of floats; BF16 is held as float32, which has all of its values."""

    values: NDArray[Any]
    is_bf16: bool


def read(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file by name; the one of a .npy file has none.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file.
    """
    if path.suffix == ".npy":
        return {"": _read_npy(path)}
    file = TensorFile(path)
    return {name: Tensor(file[name], file.is_bf16(name)) for name in file}


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as the file's suffix says: one into a .npy file, any number into a .safetensors file.

    Raises:
        OSError: the file cannot be written.
    """
    if path.suffix == ".npy":
        (tensor,) = tensors.values()
        with path.open("wb") as file:
            np.save(file, _stored(tensor), allow_pickle=False)
        return
    entries: dict[str, Any] = {}
    contents: list[bytes] = []
    start = 0
    for name, tensor in tensors.items():
        content = _stored(tensor).tobytes()
        dtype = "BF16" if tensor.is_bf16 else _SAFETENSORS_DTYPES[tensor.values.dtype.name]
        offsets = [start, start + len(content)]
        entries[name] = {"dtype": dtype, "shape": tensor.values.shape, "data_offsets": offsets}
        contents.append(content)
        start += len(content)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # the format wants the data aligned
    path.write_bytes(b"".join([len(header).to_bytes(8, "little"), header, *contents]))


def _read_npy(path: Path) -> Tensor:
    try:
        with path.open("rb") as file:
            # np.load takes whatever has no header for a pickle, and says how to load that unsafely.
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"it is no .npy file of numbers: {error}") from error
    if array.dtype != _UNTYPED_PAIR:
        return Tensor(array, is_bf16=False)
    return Tensor(decode(array.tobytes(), Datatype.BF16, array.shape), is_bf16=True)


def _stored(tensor: Tensor) -> NDArray[Any]:
    if not tensor.is_bf16:
        return np.ascontiguousarray(tensor.values)
    content = encode(tensor.values, Datatype.BF16)
    return np.frombuffer(content, _UNTYPED_PAIR).reshape(tensor.values.shape)
