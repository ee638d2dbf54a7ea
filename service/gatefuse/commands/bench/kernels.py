"""`gatefuse bench kernels`: the fused MLP against the read floor and against what others offer."""

from __future__ import annotations

import argparse
from functools import partial

from gatefuse.commands.bench.arguments import add_output, integer, joined, list_of
from gatefuse.commands.bench.running import EXIT_STATUS, Bench, run_and_report
from gatefuse.commands.conventions import default_jobs
from gatefuse_kernels.bench import cases
from gatefuse_kernels.bench.options import AUTOTUNE_ROWS, PEERS, Options
from gatefuse_kernels.bench.report import json_of, text
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
_EPILOG = f"""\
{EXIT_STATUS}
Compiling and tuning the peers is most of a run: max_autotune at every row count multiplies its
length. --shapes and --rows divide the table, --budget ends it in time, and if a run ends early,
whatever the cause, FILE.partial has what it had measured.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be measured."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(measure=run)
    _add_points(parser)
    _add_more(parser)
    add_output(parser, "point")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; returns the exit status.

    Raises:
        ModuleNotFoundError: torch or triton is not installed.
    """
    from gatefuse_kernels.bench.run import run_bench

    return run_and_report(
        Bench(partial(run_bench, options_of(arguments)), text, json_of), arguments.json
    )


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


def _add_points(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--shapes",
        type=list_of(parse_shape),
        default=cases.SHAPES,
        metavar="HxI,...",
        help=f"widths of the MLPs (default: {joined(cases.SHAPES)})",
    )
    add(
        "--rows",
        type=list_of(_row_count),
        default=cases.ROWS,
        metavar="M,...",
        help="row counts (default: 1,2,4,...,8192)",
    )
    add("--dtype", choices=[dtype.value for dtype in DType], default=DType.BF16.value)
    add(
        "--rounds",
        type=integer(_LEAST_ROUNDS),
        default=200,
        metavar="N",
        help="most timed rounds of a point; long ones get fewer (default: %(default)s)",
    )
    add(
        "--peers",
        type=_peers,
        default=PEERS,
        metavar="NAME,...",
        help=f"whom to compare with: all, none, or some of {joined(PEERS)} (default: all)",
    )
    add(
        "--autotune-rows",
        type=_autotune_rows,
        default=AUTOTUNE_ROWS,
        metavar="M,...",
        help="row counts at which max_autotune runs, which tunes for long at each; or all "
        f"(default: {joined(AUTOTUNE_ROWS)})",
    )


def _add_more(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
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
        type=integer(1),
        default=1000,
        metavar="N",
        help="how many random batches --deterministic computes for each shape "
        "(default: %(default)s)",
    )
    add(
        "--jobs",
        type=integer(0),
        default=default_jobs(),
        metavar="N",
        help="processes that compile ahead of the measurements; 0 for none (default: %(default)s)",
    )


def _row_count(given: str) -> int:
    if not (given.isdecimal() and 1 <= int(given) <= MAX_ROWS):
        raise ValueError(f"a row count is an integer in 1..{MAX_ROWS}, not {given!r}")
    return int(given)


def _autotune_rows(given: str) -> str | tuple[int, ...]:
    return given if given == "all" else list_of(_row_count)(given)


def _peers(given: str) -> tuple[str, ...]:
    if given == "all":
        return PEERS
    if given == "none":
        return ()
    named = list_of(_peer)(given)
    return tuple(name for name in PEERS if name in named)


def _peer(given: str) -> str:
    if given not in PEERS:
        raise ValueError(f"unknown peer {given!r}: use all, none, or some of {joined(PEERS)}")
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
