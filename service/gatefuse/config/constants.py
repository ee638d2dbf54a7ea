"""Constants of elementwise models as the configuration gives them: numbers, vectors in place, vectors in files."""

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from gatefuse.config.strict import Strict

ALLOWED = "a number, a list of numbers (one for each column), or {file: PATH, tensor: NAME}"


class VectorFile(Strict):
    """A per-column vector [C] that a worker reads from a safetensors file when it loads the model."""

    file: Path
    tensor: str


def _read(given: Any) -> "float | tuple[float, ...] | VectorFile":
    if isinstance(given, VectorFile):
        return given
    if isinstance(given, dict):
        return _read_file(given)
    if not isinstance(given, list | tuple):
        return _number(given)
    if not given:
        raise ValueError("an empty list: give one number for each column")
    return tuple(map(_number, given))


def _read_file(given: dict[Any, Any]) -> VectorFile:
    if given.keys() != {"file", "tensor"}:
        raise ValueError(f"has the keys {sorted(map(str, given))}: give {ALLOWED}")
    file, tensor = given["file"], given["tensor"]
    if not isinstance(file, str | Path):
        raise ValueError(f"file must be a path, not {file!r}")
    if not isinstance(tensor, str) or not tensor:
        raise ValueError(f"tensor must be the name of a tensor, not {tensor!r}")
    return VectorFile(file=Path(file), tensor=tensor)


def _number(given: Any) -> float:
    try:
        # YAML takes 1e-3 for a text, and 1.0e-3 for a number.
        number = float(given) if isinstance(given, int | float | str) else math.nan
    except OverflowError:
        number = math.inf
    except ValueError:
        number = math.nan
    if isinstance(given, bool) or (not isinstance(given, int | float) and math.isnan(number)):
        raise ValueError(f"{given!r} is not a number: give {ALLOWED}")
    if not math.isfinite(number):
        raise ValueError(f"{given!r} is not finite")
    return number


def _write(constant: "float | tuple[float, ...] | VectorFile") -> Any:
    if isinstance(constant, VectorFile):
        return {"file": str(constant.file), "tensor": constant.tensor}
    return constant


Vector = tuple[float, ...] | VectorFile
Constant = Annotated[
    float | tuple[float, ...] | VectorFile,
    PlainValidator(_read),
    PlainSerializer(_write, return_type=Any),
]
