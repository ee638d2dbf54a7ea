"""Compiles candidates in processes beside, before any is timed; says which are of no use, and why.

A process launches the kernel on memory of its own: what it compiled is then in Triton's cache on
disk, where the measuring process finds it.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any, Self

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.bench.copies import make_copy
from gatefuse_kernels.plan import Plan, Tile
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.swiglu.down import swiglu_down
from gatefuse_kernels.swiglu.down_tma import swiglu_down_tma
from gatefuse_kernels.swiglu.gate_up import swiglu_gate_up
from gatefuse_kernels.swiglu.gate_up_specialized import swiglu_gate_up_specialized
from gatefuse_kernels.swiglu.gate_up_tma import swiglu_gate_up_tma
from gatefuse_kernels.swiglu.launcher import Launcher
from gatefuse_kernels.swiglu.streamed import swiglu_down_streamed, swiglu_gate_up_streamed
from gatefuse_kernels.tuning.stopwatch import Launch

_KERNELS: tuple[Any, ...] = (
    swiglu_gate_up,
    swiglu_gate_up_tma,
    swiglu_gate_up_specialized,
    swiglu_gate_up_streamed,
    swiglu_down,
    swiglu_down_tma,
    swiglu_down_streamed,
)

_LONGEST_S = 900.0
"""A process that dies leaves its task open for ever."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What the candidates are for."""

    shape: MlpShape
    dtype: DType
    device: str


def launch_tile(
    launch: Launch, launcher: Launcher, x: torch.Tensor, out: torch.Tensor, tile: Tile
) -> None:
    """One launch on the current stream: x is `[M, H]` for gate_up, h `[M, I]` for down."""
    (launcher.gate_up if launch is Launch.GATE_UP else launcher.down)(x, out, tile)


class Compilers:
    """Processes that compile; a context, whose end is theirs."""

    def __init__(self, jobs: int) -> None:
        """Start `jobs` processes; with fewer than one, this one compiles."""
        # Spawned: CUDA does not survive a fork.
        self._pool = get_context("spawn").Pool(jobs, _start) if jobs > 0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.terminate()

    def faults(self, problem: Problem, launch: Launch, tiles: Sequence[Tile]) -> list[str]:
        """For each tile why it cannot be used, or an empty text."""
        compile_one = partial(_fault, problem, launch)
        if self._pool is None:
            return [compile_one(tile) for tile in tiles]
        return self._pool.map_async(compile_one, tiles, chunksize=1).get(_LONGEST_S)

    def prepare(self, problem: Problem, rows: int, plans: Sequence[Plan]) -> None:
        """Compile what plans add to their tiles: how their launches overlap."""
        if self._pool is not None:
            run = partial(_run, problem, rows)
            self._pool.map_async(run, plans, chunksize=1).get(_LONGEST_S)


def _start() -> None:
    # Ctrl-C is the parent's to answer; it ends these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fault(problem: Problem, launch: Launch, tile: Tile) -> str:
    launcher, device = _launcher(problem)
    hidden, intermediate = problem.shape.hidden, problem.shape.intermediate
    inner, columns = (hidden, intermediate) if launch is Launch.GATE_UP else (intermediate, hidden)
    dtype = dtypes.to_torch(problem.dtype)
    x = torch.zeros(tile.rows, inner, dtype=dtype, device=device)
    out = torch.empty(tile.rows, columns, dtype=dtype, device=device)
    known = _variants()
    try:
        with torch.cuda.device(device):
            launch_tile(launch, launcher, x, out, tile)
            torch.cuda.synchronize()
    except Exception as error:
        # Too much shared memory, an assertion of the compiler, a tile that ptxas refuses: its own
        # text says which, and the next candidate may be fine.
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    spills = sum(variant.n_spills for key, variant in _variants().items() if key not in known)
    return f"spills {spills} registers" if spills else ""


def _run(problem: Problem, rows: int, plan: Plan) -> None:
    launcher, device = _launcher(problem)
    dtype = dtypes.to_torch(problem.dtype)
    x = torch.zeros(rows, problem.shape.hidden, dtype=dtype, device=device)
    with torch.cuda.device(device):
        launcher.run(plan, x, torch.empty_like(x))
        torch.cuda.synchronize()


def _variants() -> dict[tuple[str, int, object], Any]:
    """What the kernels with tiles have compiled and loaded so far in this process."""
    return {
        (kernel.__name__, device, key): variant
        for kernel in _KERNELS
        for device, cache in kernel.device_caches.items()
        for key, variant in cache[0].items()
    }


@lru_cache(maxsize=1)
def _launcher(problem: Problem) -> tuple[Launcher, torch.device]:
    device = torch.device(problem.device)
    return Launcher(make_copy(problem.shape, problem.dtype, device).weights), device
