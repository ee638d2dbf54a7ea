"""How much of the matrices one program of the grid computes. Pure: no torch, no triton.

Registers decide: what a program keeps at once, times the elements of a thread, must leave room for
enough threads to hide memory's latency.
"""

from dataclasses import dataclass

from gatefuse_kernels.expression import Program

WARPS = 4
THREADS = 32 * WARPS

_VALUES = 112
"""Values a thread may hold at once, of 255 registers: half stay free for addresses and scheduling."""

_VECTOR_BYTES = 16
"""The widest access of a thread."""

_ACCESSES = 2
"""Of a thread and tensor: with four, x * 2 + 3 in fp32 took 201 us on an H200 where a copy took 192."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """A program's share: `rows` x `columns` where there are vectors, else `elements` in a run."""

    elements: int
    rows: int
    columns: int


def choose_tiling(program: Program, itemsize: int, columns: int | None) -> Tiling:
    """The share of one program of the grid.

    A tile is as wide as one access of every thread: then all threads hold other columns of a vector,
    the same ones in every row, and no vector has to be handed from thread to thread.

    Args:
        program: what is computed.
        itemsize: bytes per element.
        columns: C where the program has vectors.
    """
    live = peak_live_values(program)
    most = _ACCESSES * _VECTOR_BYTES // itemsize
    per_thread = next(
        (each for each in (16, 8, 4, 2) if each <= most and each * live <= _VALUES), 1
    )
    elements = per_thread * THREADS
    if not program.vectors:
        return Tiling(elements, 1, elements)
    assert columns is not None
    width = min(1 << (columns - 1).bit_length(), THREADS * _VECTOR_BYTES // itemsize, elements)
    return Tiling(elements, elements // width, width)


def peak_live_values(program: Program) -> int:
    """The most values an element needs at once: all inputs are loaded before the first step."""
    last_use: dict[str | int, int] = {}
    for number, step in enumerate(program.steps):
        last_use |= {each: number for each in step.operands if not isinstance(each, float)}
    end = len(program.steps)
    last_use |= {each: end for each in program.results if not isinstance(each, float)}
    live: set[str | int] = {each for each in last_use if isinstance(each, str)}
    peak = len(live)
    for number in range(end):
        live = {each for each in live if last_use[each] >= number} | {number}
        peak = max(peak, len(live))
    return peak
