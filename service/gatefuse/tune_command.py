"""`gatefuse tune`: measures which plans are the fastest on this machine's GPU, and writes them to a table."""

import argparse
import os
import sys
from pathlib import Path

from gatefuse_kernels.errors import BackendUnavailableError, PlanTableError
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape, parse_shape
from gatefuse_kernels.tuning.search import ROWS
from gatefuse_kernels.tuning.stopwatch import WrongAnswerError

EXIT_WRONG = 1
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
EXIT_CONFIG = 78  # EX_CONFIG
EXIT_INTERRUPTED = 130

_MOST_JOBS = 12

_DESCRIPTION = """\
Times the tiles that fit this GPU for each class of row counts, launch by launch, then whole MLPs: two
launches, a fused gate_up with the library's down, and the library with the fused gate. What wins is
written with its figures to a table, which `plan_table` in a configuration names. Nothing else may use
the GPU meanwhile.
"""
_EPILOG = """\
The table is written after every class: Ctrl-C keeps what was measured, and the rest is filled in with
the plans that the GPU has without it. Entries of other shapes stay.

exit status: 0 tuned; 1 a kernel answers wrongly; 2 wrong usage; 69 no CUDA device; 78 the table cannot
be used, or torch or triton is missing; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be tuned."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--shape",
        type=_shapes,
        required=True,
        metavar="HxI,...",
        help="widths of the MLPs, for example 4096x14336",
    )
    parser.add_argument(
        "--dtype", choices=[dtype.value for dtype in DType], default=DType.BF16.value
    )
    parser.add_argument(
        "--rows",
        type=_row_counts,
        default=ROWS,
        metavar="M,...",
        help="largest row count of each class (default: 1,2,16,32,...,2048; the last holds for all above)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the table")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(_MOST_JOBS, max(0, (os.cpu_count() or 1) - 2)),
        metavar="N",
        help="processes that compile candidates (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Tunes; returns the exit status.

    Raises:
        ModuleNotFoundError: torch or triton is not installed.
    """
    from gatefuse_kernels.tuning.run import TuneOptions, tune

    options = TuneOptions(
        shapes=arguments.shape,
        dtype=DType(arguments.dtype),
        rows=arguments.rows,
        output=arguments.output,
        jobs=arguments.jobs,
        command=("gatefuse", *sys.argv[1:]),
    )
    try:
        tune(options, _say)
    except BackendUnavailableError as error:
        _say(str(error))
        return EXIT_UNAVAILABLE
    except WrongAnswerError as error:
        _say(str(error))
        return EXIT_WRONG
    except (PlanTableError, ValueError) as error:
        _say(str(error))
        return EXIT_CONFIG
    except KeyboardInterrupt:
        _say(f"interrupted; {options.output} has every class that was finished")
        return EXIT_INTERRUPTED
    _say(f"{options.output} is written: name it as plan_table in the configuration")
    return 0


def _shapes(given: str) -> tuple[MlpShape, ...]:
    try:
        return tuple(dict.fromkeys(parse_shape(item.strip()) for item in given.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _row_counts(given: str) -> tuple[int, ...]:
    counts = {item.strip() for item in given.split(",")}
    if not all(count.isdecimal() and 1 <= int(count) <= MAX_ROWS for count in counts):
        raise argparse.ArgumentTypeError(
            f"row counts are integers in 1..{MAX_ROWS}, separated by commas, not {given!r}"
        )
    return tuple(sorted({int(count) for count in counts}))


def _say(what: str) -> None:
    print(f"gatefuse tune: {what}", file=sys.stderr, flush=True)
