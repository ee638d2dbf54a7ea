"""Compiles what a run will need, in processes beside, before anything is measured.

Triton's and Inductor's caches on disk then hold it. Compiling is most of a cold run's time, and
none of it in the run's own process could go on side by side. `max_autotune` is left out: it times
what it compiles, and must have the device to itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import TimeoutError as PoolTimeoutError
from multiprocessing import get_context

import torch

from gatefuse_kernels.bench.capture import ours
from gatefuse_kernels.bench.compilers import silence
from gatefuse_kernels.bench.copies import Copy, make_copy
from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.packages import distinct_kernels
from gatefuse_kernels.bench.peers import Peer, all_peers
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType, MlpShape

OURS = "ours"
DETERMINISTIC = "deterministic"

_MOST_FAILURES = 5
"""Said one by one; they tend to be alike."""

_LONGEST_S = 240.0
"""A process that dies leaves its task open for ever."""


@dataclass(frozen=True, slots=True)
class Task:
    """One form at one point."""

    form: str
    shape: MlpShape
    rows: int
    dtype: DType


def tasks_for(options: Options, peers: dict[str, Peer]) -> tuple[Task, ...]:
    """What is worth compiling ahead; the longest first, so that they do not end alone."""
    tasks: list[Task] = []
    for name in ("flash_swiglu", "liger"):
        # They tune before they answer, 32 variants at a time; Liger's are flash's if that runs.
        is_tuned = name == "flash_swiglu" or "flash_swiglu" not in options.peers
        if name in options.peers and peers[name].version and is_tuned:
            smallest = min(options.shapes, key=lambda shape: shape.weight_elements)
            tasks += [
                Task(name, smallest, rows, options.dtype) for rows in distinct_kernels(options.rows)
            ]
    forms = [OURS, *([DETERMINISTIC] if options.deterministic else [])]
    forms += [name for name in ("compiled",) if name in options.peers]
    tasks += [
        Task(form, shape, rows, options.dtype)
        for form in forms
        for shape in options.shapes
        for rows in options.rows
    ]
    return tuple(tasks)


def compile_ahead(options: Options, peers: dict[str, Peer], say: Callable[[str], None]) -> None:
    """Run the tasks in `options.jobs` processes; a task that fails says so and is left."""
    tasks = tasks_for(options, peers)
    if options.jobs < 1 or not tasks:
        return
    say(f"compiling {len(tasks)} cases in {options.jobs} processes")
    with get_context("spawn").Pool(options.jobs, _start) as pool:
        # Leaving the block ends the processes, whatever they are at.
        pending = pool.map_async(_compile, tasks, chunksize=1)
        try:
            failures = [failure for failure in pending.get(_LONGEST_S) if failure]
        except PoolTimeoutError:
            failures = [f"not all cases were compiled within {_LONGEST_S:.0f} s"]
    for failure in failures[:_MOST_FAILURES]:
        say(failure)
    if len(failures) > _MOST_FAILURES:
        say(f"{len(failures) - _MOST_FAILURES} more cases failed to compile ahead")


def _start() -> None:
    from torch._inductor import config

    # The processes are the parallelism; each would else start one more for every core.
    config.compile_threads = 1
    silence()


def _compile(task: Task) -> str:
    """Call the form once; returns what went wrong, if something did."""
    try:
        with torch.no_grad():
            _call(task)
    except Exception as error:  # whatever it is, the run itself will meet it and say so
        return f"{task.form}, {task.shape}, {task.rows} rows: {type(error).__name__}: {error}"
    return ""


def _call(task: Task) -> None:
    device = torch.device("cuda")
    weights = _zero_weights(task.shape, task.dtype, device).weights
    x = torch.zeros(task.rows, task.shape.hidden, dtype=weights.down.dtype, device=device)
    if task.form in (OURS, DETERMINISTIC):
        mlp = ours(weights, task.rows, Ledger(), deterministic=task.form == DETERMINISTIC)
        mlp(x, torch.empty_like(x))
    else:
        all_peers()[task.form].bind(weights, task.rows)(x)
    torch.cuda.synchronize()


@lru_cache(maxsize=1)
def _zero_weights(shape: MlpShape, dtype: DType, device: torch.device) -> Copy:
    return make_copy(shape, dtype, device)
