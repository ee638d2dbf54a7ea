"""Tunes shapes on this machine's GPU, one after the other, into one table."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import triton

from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.plan import DeviceProfile
from gatefuse_kernels.plan.table import Entry, Measurement
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning.compiling import Compilers, Problem
from gatefuse_kernels.tuning.measuring import GpuStopwatch
from gatefuse_kernels.tuning.merging import open_table, probe, with_entry, write_table
from gatefuse_kernels.tuning.search import Search, check_shape
from gatefuse_kernels.tuning.stopwatch import NoMemoryError

DEVICE = "cuda:0"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What to tune.

    Attributes:
        shapes: widths of the MLPs.
        dtype: element type.
        rows: the largest row count of each class, ascending.
        output: the table; what it has of other shapes stays.
        jobs: processes that compile.
        command: how this run was asked for.
    """

    shapes: tuple[MlpShape, ...]
    dtype: DType
    rows: tuple[int, ...]
    output: Path
    jobs: int
    command: tuple[str, ...]


def tune(options: TuneOptions, say: Callable[[str], None]) -> None:
    """Measure, and write the table after every class of row counts.

    Whatever is wrong with what was asked for is found before anything is measured.

    Raises:
        BackendUnavailableError: there is no CUDA device.
        OutputError: `output` cannot be written.
        PlanTableError: `output` is there and is no table, or is of another device.
        ValueError: a shape has nothing to choose.
        WrongAnswerError: a plan that was timed does not answer rightly.
        NoMemoryError: the device does not hold copies of the weights and the rows beside them.
        multiprocessing.TimeoutError: a process that compiles died or hangs.
    """
    for shape in options.shapes:
        check_shape(shape, options.dtype)
    if not torch.cuda.is_available():
        raise BackendUnavailableError("tuning needs a CUDA device")
    device = profile_of(torch.device(DEVICE))
    table = open_table(options.output, device)
    probe(options.output)
    measured = Measurement(
        date=date.today().isoformat(),
        torch=torch.__version__,
        triton=triton.__version__,
        command=shlex.join(options.command),
    )

    def keep(entry: Entry) -> None:
        nonlocal table
        table = with_entry(table, entry)
        write_table(table, options.output)

    with Compilers(options.jobs) as compilers:
        for shape in options.shapes:
            say(f"{shape} {options.dtype} on {device.name}")
            problem = Problem(shape, options.dtype, DEVICE)
            try:
                _search(problem, device, compilers, say).run(options.rows, measured, keep)
            except torch.OutOfMemoryError as error:
                asked, _, _ = str(error).partition(". GPU")
                raise NoMemoryError(f"{shape} {options.dtype}: {asked}") from error
            # For the processes that compile, too.
            torch.cuda.empty_cache()


def _search(
    problem: Problem, device: DeviceProfile, compilers: Compilers, say: Callable[[str], None]
) -> Search:
    """A search with a stopwatch, whose weights fill memory until the search is let go."""
    stopwatch = GpuStopwatch(problem, compilers, say)
    return Search(problem.shape, problem.dtype, device, stopwatch, say)
