"""The kernels that a GPU really runs, as torch's profiler sees them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

_NO_KERNELS = ("Memcpy", "Memset")


@contextmanager
def kernels_run() -> Iterator[Counter[str]]:
    """Counts the kernels of this process by name; the counts are there when the block has ended."""
    counts: Counter[str] = Counter()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        yield counts
        torch.cuda.synchronize()
    counts.update(
        event.name
        for event in profiler.events() or []
        if event.device_type.name == "CUDA" and not event.name.startswith(_NO_KERNELS)
    )


def device_facts() -> dict[str, str]:
    """Of the first GPU, and of what runs on it."""
    import triton

    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
