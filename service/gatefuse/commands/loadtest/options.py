"""The load test's command line, read and checked."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from gatefuse.commands.loadtest.plan import ARRIVALS, Load
from gatefuse.wire import Datatype


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    url: str
    models: tuple[str, ...]
    rows: tuple[int, ...]
    loads: tuple[Load, ...]
    seconds: float
    warm_up_s: float
    timeout_s: float
    layers: tuple[int, ...] | None
    datatype: Datatype | None
    columns: int | None
    exact: Path | None
    inputs: Path | None
    check: bool
    max_error: float | None
    processes: int
    connections: int
    max_outstanding: int
    seed: int
    json: Path | None
    html: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the load test's arguments to a parser."""
    parser.add_argument(
        "--url", default="127.0.0.1:8001", help="HOST:PORT of the server (default: %(default)s)"
    )
    parser.add_argument(
        "--models", type=_names, required=True, help="models to load in turn: A,B,..."
    )
    _add_load(parser.add_argument_group("load"))
    _add_content(parser.add_argument_group("what is sent, and what has to come back"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", type=Path, metavar="PATH", help="write everything measured; - prints it"
    )
    output.add_argument("--html", type=Path, metavar="PATH", help="write a report with plots")


def options_of(arguments: argparse.Namespace) -> Options:
    """Returns the checked options. Raises ValueError for arguments that do not go together."""
    fields = vars(arguments)
    if fields["rate"] and fields["concurrency"]:
        raise ValueError("--rate and --concurrency do not go together: the loop is open or closed")
    if fields["exact"] and fields["inputs"]:
        raise ValueError("--exact and --inputs do not go together: exact answers need their inputs")
    if fields["max_error"] is not None and not fields["check"]:
        raise ValueError("--max-error and --no-check do not go together")
    loads = (
        tuple(Load(rate=rate, arrivals=fields["arrivals"]) for rate in fields["rate"])
        if fields["rate"]
        else tuple(Load(concurrency=number) for number in fields["concurrency"] or (1, 8, 32))
    )
    names = set(Options.__dataclass_fields__) - {"loads"}
    return Options(loads=loads, **{name: fields[name] for name in names})


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rows", type=_counts, default=(1,), help="rows of a request: 1,16,... (default: 1)"
    )
    group.add_argument(
        "--concurrency",
        type=_counts,
        metavar="C,...",
        help="closed loop: so many clients, one request after the other (default: 1,8,32)",
    )
    group.add_argument(
        "--rate", type=_rates, metavar="R,...", help="open loop: so many requests a second"
    )
    group.add_argument(
        "--arrivals",
        choices=ARRIVALS,
        default="poisson",
        help="open loop: at random or at equal distances (default: %(default)s)",
    )
    group.add_argument(
        "--seconds", type=_positive, default=10.0, help="measured for each cell (default: 10)"
    )
    group.add_argument(
        "--warm-up",
        dest="warm_up_s",
        type=_not_negative,
        default=1.0,
        metavar="SECONDS",
        help="before it, not counted (default: 1)",
    )
    group.add_argument(
        "--timeout",
        dest="timeout_s",
        type=_positive,
        default=10.0,
        metavar="SECONDS",
        help="deadline of a request (default: 10)",
    )
    group.add_argument(
        "--processes", type=_count, default=1, help="processes that send (default: 1)"
    )
    group.add_argument(
        "--connections", type=_count, default=1, help="connections of each process (default: 1)"
    )
    group.add_argument(
        "--outstanding",
        dest="max_outstanding",
        type=_count,
        default=4096,
        metavar="N",
        help="open loop: most requests unanswered at a time (default: %(default)s)",
    )


def _add_content(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--datatype",
        type=Datatype.of_name,
        metavar="|".join(Datatype),
        help="what travels (default: the first model's own)",
    )
    group.add_argument("--layers", type=_layers, help="layers in turn: 0,3,... (default: all)")
    group.add_argument(
        "--columns", type=_count, help="width of a row, for models that take any (default: 1024)"
    )
    group.add_argument(
        "--exact",
        type=Path,
        metavar="FILE",
        help="safetensors with layer.N.input and layer.N.output_f64: send the first, expect the second",
    )
    group.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="safetensors with layer.N.input: send these rows instead of random ones",
    )
    group.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check every answer; without --exact, against the first model's for each row alone",
    )
    group.add_argument(
        "--max-error",
        type=_positive,
        metavar="E",
        help="relative error that is still right (default: by backend and dtype)",
    )
    group.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different names")
    return names


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _layers(text: str) -> tuple[int, ...]:
    layers = tuple(_integer(part) for part in text.split(","))
    if min(layers) < 0:
        raise argparse.ArgumentTypeError("a layer's number is not negative")
    return layers


def _count(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is negative or not finite")
    return value
