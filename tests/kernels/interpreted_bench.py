"""The bench's reading and copying kernels in Triton's interpreter; `test_interpreter.py` runs this file."""

from __future__ import annotations

import os
from functools import reduce
from operator import xor

import pytest
import torch

from gatefuse_kernels.bench import streams
from gatefuse_kernels.bench.streams import Reader

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_interpreter.py"

READERS = (
    Reader("once", 64, 4),
    Reader("looping", 64, 4, depth=2, programs=2),
    Reader("looping", 32, 4, depth=3, programs=1),
    Reader("pipelined", 64, 4, depth=3, programs=2),
)
PROCESSORS = 2


def random_words(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-(2**31), 2**31, (count,), dtype=torch.int32, generator=generator)


def folded(words: torch.Tensor) -> int:
    return reduce(xor, words.tolist(), 0)


@pytest.mark.parametrize("reader", READERS, ids=str)
@pytest.mark.parametrize("count", [16, 64, 80, 640, 1008])
def test_every_word_is_read_once(count: int, reader: Reader) -> None:
    words = random_words(count)
    programs = reader.grid(count, PROCESSORS)
    out = torch.full((programs + 1,), 7, dtype=torch.int32)
    streams.launch_read(reader, words, out, PROCESSORS)
    assert folded(out[:programs]) == folded(words)
    assert out[programs] == 7, "wrote past its programs"


@pytest.mark.parametrize("count", [16, 64, 80, 1008])
def test_every_word_is_copied(count: int) -> None:
    words = random_words(count)
    copy = torch.full((count + 1,), 7, dtype=torch.int32)
    streams.launch_copy(words, copy[:count], block=64)
    assert torch.equal(copy[:count], words)
    assert copy[count] == 7
