"""`gatefuse tune`: measures which plans are the fastest on this machine's GPU, and writes them to a table."""

import argparse
import sys
import traceback
from multiprocessing import TimeoutError as CompilerTimeoutError
from pathlib import Path

from gatefuse.commands.conventions import (
    EXIT_CANNOT_WRITE,
    EXIT_CONFIG,
    EXIT_INTERRUPTED,
    EXIT_NO_MEMORY,
    EXIT_SOFTWARE,
    EXIT_UNAVAILABLE,
    EXIT_WRONG,
    default_jobs,
)
from gatefuse_kernels.errors import BackendUnavailableError, PlanTableError
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape, parse_shape
from gatefuse_kernels.tuning.merging import OutputError
from gatefuse_kernels.tuning.search import ROWS
from gatefuse_kernels.tuning.stopwatch import NoMemoryError, WrongAnswerError

_DESCRIPTION = """\
Times the tiles that fit this GPU for each class of row counts, launch by launch, then whole MLPs: two
launches, a fused gate_up with the library's down, and the library with the fused gate. The fastest of
the first two is written with its figures to a table, which `plan_table` in a configuration names. The
library, which rounds gate and up on their way through memory, is measured beside them and taken only
where no tile can be used. Nothing else may use the GPU meanwhile.
"""
_EPILOG = """\
The table is written after every class: Ctrl-C keeps what was measured, and the rest is filled in with
the plans that the GPU has without it. Entries of other shapes stay.

Shapes, the table and its folder are checked before anything is measured.

exit status: 0 tuned; 1 a kernel answers wrongly; 2 wrong usage; 69 no CUDA device; 70 a process that compiles
died or hangs, the system failed, or this program did; 71 the GPU has too little memory; 73 the table
cannot be written; 78 the table that is there cannot be used, a shape's rows do not start on 16 bytes, or
torch or triton is missing; 130 interrupted.
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
        type=_jobs,
        default=default_jobs(),
        metavar="N",
        help="processes that compile candidates; 0: this one does (default: %(default)s)",
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
    except (NoMemoryError, MemoryError) as error:
        _say(f"too little memory: {_line(error)}; {options.output} keeps what was finished")
        return EXIT_NO_MEMORY
    except OutputError as error:
        _say(str(error))
        return EXIT_CANNOT_WRITE
    except WrongAnswerError as error:
        _say(str(error))
        return EXIT_WRONG
    except (PlanTableError, ValueError) as error:
        _say(str(error))
        return EXIT_CONFIG
    except KeyboardInterrupt:
        _say(f"interrupted; {options.output} has every class that was finished")
        return EXIT_INTERRUPTED
    except CompilerTimeoutError:
        _say(f"a process that compiles died or hangs; {options.output} keeps what was finished")
        return EXIT_SOFTWARE
    except OSError as error:
        _say(f"{_line(error)}; {options.output} keeps what was finished")
        return EXIT_SOFTWARE
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # Whatever it is, it must not look like a wrong answer, which is Python's own status.
        traceback.print_exc()
        _say(f"{_line(error)}; {options.output} keeps what was finished")
        return EXIT_SOFTWARE
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


def _jobs(given: str) -> int:
    if not given.isdecimal():
        raise argparse.ArgumentTypeError(
            f"jobs are a number of processes, 0 or more, not {given!r}"
        )
    return int(given)


def _line(error: Exception) -> str:
    """The first line of what an error says, or its kind."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _say(what: str) -> None:
    print(f"gatefuse tune: {what}", file=sys.stderr, flush=True)
