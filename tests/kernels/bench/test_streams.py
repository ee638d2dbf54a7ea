"""How memory is seen and cut by the readers; what they read is checked in `interpreted_bench.py`."""

from __future__ import annotations

import torch

from gatefuse_kernels.bench import streams
from gatefuse_kernels.bench.streams import Reader


def test_words_are_whole_lines_of_the_same_memory() -> None:
    memory = torch.zeros(100, dtype=torch.bfloat16)
    words = streams.as_words(memory)
    assert (words.dtype, words.numel()) == (torch.int32, 48)
    words.fill_(1)
    assert memory[:96].view(torch.int32).eq(1).all()
    assert memory[96:].eq(0).all()


def test_programs() -> None:
    assert Reader("once", 1024, 4).grid(1025, 132) == 2
    assert Reader("looping", 1024, 4, depth=2, programs=4).grid(1 << 24, 132) == 528
    assert Reader("looping", 1024, 4, depth=2, programs=4).grid(1024, 132) == 1


def test_readers_have_names_of_their_own() -> None:
    names = [str(reader) for reader in streams.READERS]
    assert len(set(names)) == len(names)
    assert "once: 32 KiB, 8 warps" in names
    assert "pipelined: 32 KiB, 8 warps, 1 per SM, depth 6" in names
