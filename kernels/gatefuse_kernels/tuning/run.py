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
from gatefuse_kernels.plan.table import Entry, Measurement
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning.compiling import Compilers, Problem
from gatefuse_kernels.tuning.measuring import GpuStopwatch
from gatefuse_kernels.tuning.merging import open_table, with_entry, write_table
from gatefuse_kernels.tuning.search import Search

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

    Raises:
        BackendUnavailableError: there is no CUDA device.
        PlanTableError: `output` is there and is no table.
        ValueError: it is of another device, or a shape has nothing to choose.
        WrongAnswerError: a plan that was timed does not answer rightly.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailableError("tuning needs a CUDA device")
    device = profile_of(torch.device(DEVICE))
    table = open_table(options.output, device)
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
            stopwatch = GpuStopwatch(problem, compilers, say)
            Search(shape, options.dtype, device, stopwatch, say).run(options.rows, measured, keep)
