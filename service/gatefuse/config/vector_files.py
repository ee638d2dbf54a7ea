"""What a safetensors file says of a vector in it: read from its header, before any worker loads it."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from gatefuse.config.constants import VectorFile

FLOATS = ("F64", "F32", "F16", "BF16")
"""Element types that a vector may have, as safetensors calls them."""


def vector_columns(vector: VectorFile) -> int:
    """C of the vector `[C]`.

    Raises:
        ValueError: the file cannot be read, has no such tensor, or it is no vector of floats.
    """
    dtype, shape = _header(vector.file, vector.tensor)
    what = f"tensor '{vector.tensor}' of {vector.file}"
    if dtype not in FLOATS:
        raise ValueError(f"{what} holds {dtype}; possible are {', '.join(FLOATS)}")
    if len(shape) != 1 or not shape[0]:
        raise ValueError(f"{what} has shape {shape}, not [columns]")
    return shape[0]


def _header(path: Path, tensor: str) -> tuple[str, list[int]]:
    """Element type and shape."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            names = sorted(file.keys())
            if tensor not in names:
                raise ValueError(f"{path} has no tensor '{tensor}'; it has {_listed(names)}")
            header = file.get_slice(tensor)
            return header.get_dtype(), list(header.get_shape())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
