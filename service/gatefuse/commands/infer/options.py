"""The arguments of `gatefuse infer`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from gatefuse.wire import Datatype

SUFFIXES = (".npy", ".safetensors")

_FILES = """\
files:
  FILE ends in .npy or .safetensors. NAME is the model's name of the tensor; it can be left out where there is only
  one, and for a .safetensors file, whose tensors have names of their own. FILE.safetensors:TENSOR picks one of them.
  BF16 in .npy is two bytes an element without a type (V2), as numpy stores arrays of ml_dtypes:
  numpy.load(FILE).view(ml_dtypes.bfloat16) reads it.
"""


class Named(NamedTuple):
    """A file of tensors: `name` is the model's name for the tensor, `tensor` the file's; empty where not given."""

    name: str
    path: Path
    tensor: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.epilog = _FILES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--url", default="127.0.0.1:8001", help="HOST:PORT (default: %(default)s)")
    add("--model", required=True, metavar="NAME", help="which model to run")
    add("--layer", type=int, metavar="N", help="which of its layers (default: the server's choice)")
    tensor = "[NAME=]FILE"
    add("--input", required=True, action="append", type=_named, metavar=tensor, help="rows to send")
    add("--output", action="append", type=_named, metavar=tensor, help="where answers go")
    add(
        "--datatype",
        type=str.upper,
        choices=[each.value for each in Datatype],
        help="what travels",
    )
    add("--timeout", type=_positive, default=30.0, metavar="SECONDS", help="default: %(default)g")
    add("--priority", type=int, metavar="N", help="1 is the highest, 0 the model's default")
    add("--json", action="store_true", help="machine-readable output")


def _named(text: str) -> Named:
    name, equals, rest = text.partition("=")
    if not equals or any(name.endswith(suffix) for suffix in SUFFIXES):
        name, rest = "", text
    path, colon, tensor = rest.rpartition(":")
    if not colon or not path.endswith(".safetensors"):
        path, tensor = rest, ""
    if not path.endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"{path!r} ends in neither {' nor '.join(SUFFIXES)}")
    return Named(name, Path(path), tensor)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return value
