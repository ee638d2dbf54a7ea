"""What is watched while kernels run: launches on the timeline, compilations, bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton

from gatefuse_kernels.ledger import Ledger


def profiled(*work: Callable[[], object]) -> list[str]:
    """Names of the kernels on the device's timeline; copies and memsets are not kernels."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for step in work:
            step()
        torch.cuda.synchronize()
    return [
        event.name
        for event in profile.events()
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    ]


def counted(ledger: Ledger) -> int:
    """Launches since the last drain."""
    return sum(entry.launches for entry in ledger.drain())


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collects what Triton compiles within the block, or loads from its cache on disk."""
    compiled: list[str] = []

    def note(**event: Any) -> None:
        compiled.append(event["repr"])

    knobs = triton.knobs.runtime
    before = knobs.jit_post_compile_hook
    knobs.jit_post_compile_hook = note
    try:
        yield compiled
    finally:
        knobs.jit_post_compile_hook = before


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers: NaN equals itself, and -0 does not equal 0."""
    integers = torch.int32 if tensor.element_size() == 4 else torch.int16
    return tensor.contiguous().view(integers)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same, NaN and signs of zero included."""
    return torch.equal(bits(one), bits(other))
