"""Kernels that only read, or only copy: what memory gives when nothing is computed.

Several ways, because none is the fastest at every size and on every GPU. A reader folds what it
loads into one word a program and stores that, or the compiler would drop the loads. Words are 32
bits, four to a thread's 128-bit load.
"""

from dataclasses import dataclass

import torch
import triton.language as tl

from gatefuse_kernels.launch.jit import kernel

_WORDS_PER_LINE = 16
"""Sizes are whole multiples of this, so that masks never split a 128-bit load."""


@kernel
def read_once(
    data_ptr: tl.tensor,
    folded_ptr: tl.tensor,
    words: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Each program reads one block and ends: the hardware hands blocks to whoever is free."""
    program = tl.program_id(0)
    first = program.to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    inside = offset < words - first
    value = tl.load(data_ptr + first + offset, mask=inside, other=0, eviction_policy="evict_first")
    tl.store(folded_ptr + program, tl.xor_sum(value, 0))


@kernel
def read_looping(
    data_ptr: tl.tensor,
    folded_ptr: tl.tensor,
    words: tl.tensor,
    BLOCK: tl.constexpr,
    LOADS: tl.constexpr,
) -> None:
    """A few programs for each multiprocessor, each taking every so manieth group of blocks."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    offset = tl.arange(0, BLOCK)
    folded = tl.zeros((BLOCK,), tl.int32)
    for group in range(program, tl.cdiv(words, BLOCK * LOADS), programs):
        first = tl.cast(group, tl.int64) * (BLOCK * LOADS)
        for load in tl.static_range(LOADS):
            at = first + load * BLOCK
            folded ^= tl.load(
                data_ptr + at + offset,
                mask=offset < words - at,
                other=0,
                eviction_policy="evict_first",
            )
    tl.store(folded_ptr + program, tl.xor_sum(folded, 0))


@kernel
def read_pipelined(
    data_ptr: tl.tensor,
    folded_ptr: tl.tensor,
    words: tl.tensor,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """As `read_looping`, but blocks arrive in shared memory, several ahead of the one in use."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    offset = tl.arange(0, BLOCK)
    folded = tl.zeros((BLOCK,), tl.int32)
    for block in tl.range(program, tl.cdiv(words, BLOCK), programs, num_stages=STAGES):
        first = tl.cast(block, tl.int64) * BLOCK
        folded ^= tl.load(data_ptr + first + offset, mask=offset < words - first, other=0)
    tl.store(folded_ptr + program, tl.xor_sum(folded, 0))


@kernel
def copy_once(
    data_ptr: tl.tensor, copy_ptr: tl.tensor, words: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Each program copies one block."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    inside = offset < words - first
    value = tl.load(data_ptr + first + offset, mask=inside, eviction_policy="evict_first")
    tl.store(copy_ptr + first + offset, value, mask=inside)


@dataclass(frozen=True, slots=True)
class Reader:
    """One way to read.

    Attributes:
        kind: once, looping or pipelined.
        block: words of a block.
        warps: per program.
        depth: loads of a group, or stages of the pipeline.
        programs: for each multiprocessor; of no meaning for once.
    """

    kind: str
    block: int
    warps: int
    depth: int = 1
    programs: int = 0

    def __str__(self) -> str:
        loop = f", {self.programs} per SM, depth {self.depth}" if self.programs else ""
        return f"{self.kind}: {self.block * 4 // 1024} KiB, {self.warps} warps{loop}"

    def grid(self, words: int, processors: int) -> int:
        """Programs of a launch."""
        blocks = -(-words // self.block)
        return blocks if self.kind == "once" else min(blocks, self.programs * processors)


READERS = (
    Reader("once", 2048, 4),
    Reader("once", 4096, 4),
    Reader("once", 8192, 8),
    Reader("once", 16384, 8),
    Reader("looping", 2048, 4, depth=2, programs=8),
    Reader("looping", 4096, 8, depth=2, programs=4),
    Reader("looping", 8192, 8, depth=2, programs=2),
    Reader("pipelined", 4096, 4, depth=4, programs=3),
    Reader("pipelined", 8192, 8, depth=3, programs=2),
    Reader("pipelined", 8192, 8, depth=6, programs=1),
)


def as_words(memory: torch.Tensor) -> torch.Tensor:
    """A one-dimensional tensor as int32, without a ragged end that no 128-bit load could take."""
    whole = memory.view(torch.uint8)
    line_bytes = 4 * _WORDS_PER_LINE
    return whole[: whole.numel() // line_bytes * line_bytes].view(torch.int32)


def launch_read(reader: Reader, words: torch.Tensor, folded: torch.Tensor, processors: int) -> None:
    """Read on the current stream.

    Args:
        reader: how.
        words: int32, one-dimensional, from `as_words`.
        folded: int32, at least `reader.grid(...)` long; its exclusive or is that of all words.
        processors: the device's multiprocessors.
    """
    count = words.numel()
    grid = (reader.grid(count, processors),)
    if reader.kind == "once":
        read_once[grid](words, folded, count, BLOCK=reader.block, num_warps=reader.warps)
    elif reader.kind == "looping":
        read_looping[grid](
            words, folded, count, BLOCK=reader.block, LOADS=reader.depth, num_warps=reader.warps
        )
    else:
        read_pipelined[grid](
            words, folded, count, BLOCK=reader.block, STAGES=reader.depth, num_warps=reader.warps
        )


def launch_copy(words: torch.Tensor, copy: torch.Tensor, block: int = 4096) -> None:
    """Copy int32 words to equally many others on the current stream."""
    grid = (-(-words.numel() // block),)
    copy_once[grid](words, copy, words.numel(), BLOCK=block, num_warps=4)
