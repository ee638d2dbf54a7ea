"""The read floor of a shape: the fastest launch that only reads its weights; and a copy of them."""

from collections.abc import Sequence
from functools import partial

import torch

from gatefuse_kernels.bench import streams
from gatefuse_kernels.bench.capture import capture_call
from gatefuse_kernels.bench.copies import Copy
from gatefuse_kernels.bench.results import Floor
from gatefuse_kernels.bench.timing import Call, Pace, take_turns

_AMAX = "torch.amax"
_AMAX_WIDTH = 1 << 16
"""A row of words that torch folds into one: long, so that next to nothing is written."""


def measure_floor(copies: Sequence[Copy], pace: Pace) -> tuple[Floor, list[Call]]:
    """Time every reader, and two ways to copy, in turns.

    Returns:
        What was found, and one turn of the fastest reader: a call for each copy of the weights.
    """
    memory = [streams.as_words(copy.memory) for copy in copies]
    readers = {
        name: [capture_call(call) for call in calls] for name, calls in _readers(memory).items()
    }
    target = torch.empty_like(memory[0])
    copiers = [
        [capture_call(partial(target.copy_, words)) for words in memory],
        [capture_call(partial(streams.launch_copy, words, target)) for words in memory],
    ]
    spreads = take_turns([*readers.values(), *copiers], pace)
    readers_us = {
        name: found.median_us for name, found in zip(readers, spreads[: len(readers)], strict=True)
    }
    fastest = min(readers_us, key=lambda name: readers_us[name])
    copy_us = min(found.median_us for found in spreads[len(readers) :])
    shape = copies[0].weights.shape
    return Floor(shape, memory[0].nbytes, readers_us, fastest, copy_us), readers[fastest]


def _readers(memory: Sequence[torch.Tensor]) -> dict[str, list[Call]]:
    """Calls of every reader, one for each copy's words."""
    words, device = memory[0].numel(), memory[0].device
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    calls: dict[str, list[Call]] = {}
    for reader in streams.READERS:
        folded = torch.empty(reader.grid(words, processors), dtype=torch.int32, device=device)
        calls[str(reader)] = [
            partial(streams.launch_read, reader, own, folded, processors) for own in memory
        ]
    if words % _AMAX_WIDTH == 0:
        largest = torch.empty(words // _AMAX_WIDTH, dtype=torch.int32, device=device)
        calls[_AMAX] = [
            partial(torch.amax, own.view(-1, _AMAX_WIDTH), dim=1, out=largest) for own in memory
        ]
    return calls
