"""What `gatefuse explain` can be asked."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gatefuse_kernels.explain.quantities import parse_bandwidth, parse_elements, parse_flops
from gatefuse_kernels.explain.roofs import find_device
from gatefuse_kernels.shapes import MAX_ROWS, MAX_WIDTH, DType

DEFAULT_ROWS = (1, 16, 256)
DEFAULT_ELEMENTS = 100_000_000

_DESCRIPTION = """\
Explains an MLP (--hidden, --intermediate, --rows) or an elementwise expression (--expression,
--elements): for each backend every kernel with what it reads and writes, launches, passes over whole
tensors, bytes, FLOPs, intermediate memory and the time that the device's roofs allow; whether to fuse,
and why. Needs neither torch nor a GPU; with Triton it shows what registers and shared memory of the
compiled kernels allow, with a GPU the measured time beside the predicted one.
"""
_EPILOG = """\
examples:
  gatefuse explain --hidden 4096 --intermediate 14336 --rows 1,16,256 --device h200
  gatefuse explain --expression 'gelu(x) * scale + residual' --constants scale=0.5 --dtype fp32 \\
      --elements 100M --bandwidth 504GB/s --flops 29TFLOP/s

exit status: 0 explained; 2 wrong usage; 73 FILE or the output cannot be written; 78 a package is missing
that was asked for; 141 nobody reads the output any more.
"""

Value = TypeVar("Value")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.register("action", None, _Once)
    _add_subject(parser)
    _add_device(parser)
    _add_output(parser)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    mlp = parser.add_argument_group("an MLP")
    mlp.add_argument("--hidden", type=_checked(_width), metavar="H")
    mlp.add_argument("--intermediate", type=_checked(_width), metavar="I")
    mlp.add_argument(
        "--rows",
        type=_checked(_row_counts),
        metavar="M,...",
        help=f"row counts (default: {','.join(map(str, DEFAULT_ROWS))})",
    )
    chain = parser.add_argument_group("an elementwise expression")
    chain.add_argument(
        "--expression",
        metavar="TEXT",
        help="for example 'silu(g) * u'; names are tensors (one that starts with --: --expression=TEXT)",
    )
    chain.add_argument(
        "--constants",
        type=_checked(_constants),
        default={},
        metavar="NAME=VALUE,...",
        help="names that are numbers",
    )
    chain.add_argument(
        "--vectors",
        type=_checked(_names),
        default=(),
        metavar="NAME,...",
        help="names that are one number per column",
    )
    chain.add_argument(
        "--elements",
        type=_checked(parse_elements),
        metavar="N",
        help="of each tensor, for example 100M (default)",
    )
    chain.add_argument(
        "--columns",
        type=_checked(_width),
        metavar="C",
        help="of each tensor; N is rounded down to whole rows (default: 1, with --vectors 4096)",
    )
    parser.add_argument("--dtype", choices=[each.value for each in DType], default=DType.BF16.value)


def _add_device(parser: argparse.ArgumentParser) -> None:
    device = parser.add_argument_group("the device")
    device.add_argument(
        "--device",
        type=_checked(find_device),
        metavar="NAME",
        help="a known one, such as h200 (default: this machine's GPU; without one, an H200)",
    )
    device.add_argument(
        "--bandwidth",
        type=_checked(parse_bandwidth),
        metavar="B",
        help="of an unknown one's memory, such as 504GB/s",
    )
    device.add_argument(
        "--flops",
        type=_checked(parse_flops),
        metavar="F",
        help="of an unknown one's arithmetic, such as 29TFLOP/s",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("the answer")
    output.add_argument("--json", action="store_true", help="print JSON instead of tables")
    output.add_argument(
        "--plot",
        type=_checked(_picture),
        metavar="FILE",
        help="draw the roofline into FILE.svg or FILE.png",
    )
    output.add_argument(
        "--source", action="store_true", help="print the Triton kernel of the expression, no more"
    )
    output.add_argument(
        "--no-compile", action="store_true", help="leave the compiled kernels' resources out"
    )
    output.add_argument("--no-measure", action="store_true", help="leave the GPU alone")


class _Once(argparse.Action):
    """Stores a value, and refuses a second one instead of forgetting the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """See `argparse.Action`."""
        given: set[str] = namespace.__dict__.setdefault("_given", set())
        if self.dest in given:
            parser.error(f"{option_string} is given twice")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def _checked(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A parser whose own words reach the user."""

    def parse_argument(given: str) -> Value:
        try:
            return parse(given)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def _width(given: str) -> int:
    return _integer(given, MAX_WIDTH, "a width")


def _row_counts(given: str) -> tuple[int, ...]:
    counts = {_integer(item.strip(), MAX_ROWS, "a row count") for item in given.split(",")}
    return tuple(sorted(counts))


def _integer(given: str, most: int, what: str) -> int:
    if not (given.isascii() and given.isdecimal() and 1 <= int(given) <= most):
        raise ValueError(f"{what} is an integer in 1..{most}, not {given!r}")
    return int(given)


def _constants(given: str) -> dict[str, float]:
    constants = {}
    for item in given.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name in constants:
            raise ValueError(f"{name} is given twice")
        try:
            constants[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise ValueError(f"a constant reads NAME=VALUE, for example scale=0.5, not {item!r}")
    return constants


def _names(given: str) -> tuple[str, ...]:
    names = tuple(item.strip() for item in given.split(","))
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is given twice")
    return names


def _picture(given: str) -> Path:
    path = Path(given)
    if path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"a picture is FILE.svg or FILE.png, not {given!r}")
    return path
