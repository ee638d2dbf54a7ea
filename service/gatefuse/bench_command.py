"""`gatefuse bench kernels`: the fused kernels against the read floor and against what others offer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import TypeVar

from gatefuse.measuring import (
    EXIT_CANNOT_WRITE,
    EXIT_NO_MEMORY,
    EXIT_UNAVAILABLE,
    EXIT_WRONG,
    STDOUT,
    default_jobs,
)
from gatefuse_kernels.bench import cases
from gatefuse_kernels.bench.options import AUTOTUNE_ROWS, PEERS, Options
from gatefuse_kernels.bench.report import json_of, text
from gatefuse_kernels.bench.results import Report
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.shapes import MAX_ROWS, DType, parse_shape

_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
_MOST_ELEMENTS = 1 << 42
"""As many as one launch of the gate can cover."""
_LEAST_ROUNDS = 10

_DESCRIPTION = """\
Measures the fused MLP on this machine's GPU: CUDA-graph replays, weights rotated so that L2 cannot
hold them, all forms taking turns in one run. Beside each time stand the fastest launch that only
reads the same weights, and the fastest of the other ways to compute the same: eager, torch.compile,
cuBLAS with a fused gate, flash-swiglu-mlp and Liger. Then the elementwise gate against a copy, and
the host's time for a launch. Every answer is checked against float64 first; if one of ours is
wrong, the run ends there.
"""
_EPILOG = """\
exit status: 0 measured, whatever the figures; 1 an answer of ours is wrong; 2 wrong usage;
69 no CUDA device; 71 the GPU has too little memory; 73 FILE cannot be written; 78 torch or triton
is missing.

Compiling and tuning the peers is most of a run: max_autotune at every row count multiplies its
length. --shapes and --rows divide the table, --budget ends it in time, and if a run ends early,
whatever the cause, FILE.partial has what it had measured.
"""

Item = TypeVar("Item")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `bench` and what it can measure."""
    benches = parser.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    kernels = benches.add_parser(
        "kernels",
        help="the fused MLP on a GPU",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_kernels(kernels)


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; returns the exit status.

    Raises:
        ModuleNotFoundError: torch or triton is not installed.
    """
    from gatefuse_kernels.bench.run import NoMemoryError, WrongAnswerError, run_bench

    try:
        as_json = arguments.json == STDOUT
        output = _Output(arguments.json) if arguments.json and not as_json else None
        report = run_bench(options_of(arguments), _say, output.keep if output else _drop)
        print(json.dumps(json_of(report), indent=1) if as_json else text(report), flush=True)
        if output:
            output.finish(report)
    except BackendUnavailableError as error:
        _say(str(error))
        return EXIT_UNAVAILABLE
    except WrongAnswerError as error:
        _say(str(error))
        return EXIT_WRONG
    except NoMemoryError as error:
        _say(str(error))
        return EXIT_NO_MEMORY
    except _CannotWriteError as error:
        _say(str(error))
        return EXIT_CANNOT_WRITE
    return EXIT_WRONG if report.problems else 0


def options_of(arguments: argparse.Namespace) -> Options:
    """What the arguments ask for."""
    rows = arguments.rows
    return Options(
        shapes=arguments.shapes,
        rows=rows,
        dtype=DType(arguments.dtype),
        rounds=arguments.rounds,
        peers=arguments.peers,
        autotune_rows=rows if arguments.autotune_rows == "all" else arguments.autotune_rows,
        elements=arguments.elements,
        deterministic=arguments.deterministic,
        compositions=arguments.compositions,
        jobs=arguments.jobs,
        budget_s=arguments.budget,
    )


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--shapes",
        type=_list_of(parse_shape),
        default=cases.SHAPES,
        metavar="HxI,...",
        help=f"widths of the MLPs (default: {_joined(cases.SHAPES)})",
    )
    add(
        "--rows",
        type=_list_of(_row_count),
        default=cases.ROWS,
        metavar="M,...",
        help="row counts (default: 1,2,4,...,8192)",
    )
    add("--dtype", choices=[dtype.value for dtype in DType], default=DType.BF16.value)
    add(
        "--rounds",
        type=_integer(_LEAST_ROUNDS),
        default=200,
        metavar="N",
        help="most timed rounds of a point; long ones get fewer (default: %(default)s)",
    )
    add(
        "--peers",
        type=_peers,
        default=PEERS,
        metavar="NAME,...",
        help=f"whom to compare with: all, none, or some of {_joined(PEERS)} (default: all)",
    )
    add(
        "--autotune-rows",
        type=_autotune_rows,
        default=AUTOTUNE_ROWS,
        metavar="M,...",
        help="row counts at which max_autotune runs, which tunes for long at each; or all "
        f"(default: {_joined(AUTOTUNE_ROWS)})",
    )
    add(
        "--elements",
        type=_elements,
        default=100_000_000,
        metavar="N",
        help="size of the elementwise gate's operands, such as 100M; 0 leaves it out "
        "(default: 100M)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="measure the batch-invariant mode, too, and compare its rows' bits over random batches",
    )
    add(
        "--compositions",
        type=_integer(1),
        default=1000,
        metavar="N",
        help="how many random batches --deterministic computes for each shape "
        "(default: %(default)s)",
    )
    add(
        "--jobs",
        type=_integer(0),
        default=default_jobs(),
        metavar="N",
        help="processes that compile ahead of the measurements; 0 for none (default: %(default)s)",
    )
    add(
        "--budget",
        type=_integer(0),
        default=0,
        metavar="SECONDS",
        help="begin no new point after so long, and report what there is (default: no limit)",
    )
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write everything that was measured here; - prints it",
    )


def _list_of(parse: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """A parser of comma-separated items, each wanted once."""

    def parse_list(given: str) -> tuple[Item, ...]:
        try:
            return tuple(dict.fromkeys(parse(item.strip()) for item in given.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_list


def _integer(least: int) -> Callable[[str], int]:
    def parse(given: str) -> int:
        if not given.isdecimal() or int(given) < least:
            raise argparse.ArgumentTypeError(f"expected an integer from {least}, got {given!r}")
        return int(given)

    return parse


def _row_count(given: str) -> int:
    if not (given.isdecimal() and 1 <= int(given) <= MAX_ROWS):
        raise ValueError(f"a row count is an integer in 1..{MAX_ROWS}, not {given!r}")
    return int(given)


def _autotune_rows(given: str) -> str | tuple[int, ...]:
    return given if given == "all" else _list_of(_row_count)(given)


def _peers(given: str) -> tuple[str, ...]:
    if given == "all":
        return PEERS
    if given == "none":
        return ()
    named = _list_of(_peer)(given)
    return tuple(name for name in PEERS if name in named)


def _peer(given: str) -> str:
    if given not in PEERS:
        raise ValueError(f"unknown peer {given!r}: use all, none, or some of {_joined(PEERS)}")
    return given


def _elements(given: str) -> int:
    number, unit = given, 1
    if given[-1:] in _UNITS:
        number, unit = given[:-1], _UNITS[given[-1]]
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number such as 100M, got {given!r}")
    elements = int(number) * unit
    if elements > _MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_ELEMENTS}, got {given!r}")
    return elements


def _joined(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))


def _say(what: str) -> None:
    print(f"gatefuse bench: {what}", file=sys.stderr, flush=True)


class _CannotWriteError(RuntimeError):
    """FILE cannot be written; the text says why."""


class _Output:
    """FILE, and FILE.partial until all is measured."""

    def __init__(self, path: Path) -> None:
        """Find out before hours of measuring whether both can be written; leave both as they are.

        Raises:
            _CannotWriteError: they cannot.
        """
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        with self._writing():
            if path.is_dir():
                raise IsADirectoryError(EISDIR, strerror(EISDIR), str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self._partial.exists()
            self._partial.open("a", encoding="utf-8").close()
            if is_new:
                self._partial.unlink()

    def keep(self, report: Report) -> None:
        """Write what there is so far; if that fails, say so and let the run go on."""
        try:
            self._write(report)
        except _CannotWriteError as error:
            _say(str(error))

    def finish(self, report: Report) -> None:
        """Write all there is.

        Raises:
            _CannotWriteError: it cannot be written.
        """
        self._write(report)
        with self._writing():
            self._partial.replace(self._path)

    def _write(self, report: Report) -> None:
        with self._writing():
            given = json.dumps(json_of(report), indent=1) + "\n"
            self._partial.write_text(given, encoding="utf-8")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A full disk has no name.
            where = f": {error.filename}" if error.filename else ""
            why = f"{error.strerror}{where}"
            raise _CannotWriteError(f"cannot write {self._path}: {why}") from error


def _drop(report: Report) -> None:
    """Nobody asked for a file."""
