"""Reads safetensors files without torch: the load test needs rows and exact answers only."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatefuse.wire import Datatype, decode

_LENGTH_BYTES = 8
# The format's own limit.
_MAX_HEADER_BYTES = 100_000_000
_PLAIN_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile(Mapping[str, NDArray[Any]]):
    """The tensors of one safetensors file, read when they are asked for; BF16 becomes float32."""

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises ValueError naming the file if it is no safetensors file."""
        self._path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size = path.stat().st_size
            if size < _LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
                raise ValueError(f"{path} is not a safetensors file: its header does not fit")
            self._entries = _entries(path, file.read(length))
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data_start = _LENGTH_BYTES + length

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns one tensor as an array of its own."""
        entry = self._entries[name]
        content = self._memory[self._data_start + entry.start : self._data_start + entry.end]
        try:
            if entry.dtype == "BF16":
                return decode(content, Datatype.BF16, entry.shape)
            return np.frombuffer(content, _PLAIN_DTYPES[entry.dtype]).reshape(entry.shape)
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"{self._path}: tensor {name!r} cannot be read as {entry.dtype} {list(entry.shape)}"
            ) from error

    def is_bf16(self, name: str) -> bool:
        """Whether the tensor is BF16 in the file."""
        return self._entries[name].dtype == "BF16"

    def __iter__(self) -> Iterator[str]:
        """Yields the tensors' names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Returns the number of tensors."""
        return len(self._entries)


def _entries(path: Path, header: bytes) -> dict[str, _Entry]:
    try:
        described = json.loads(header)
        return {
            name: _Entry(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in described.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a safetensors file: its header cannot be read") from error
