"""The many ways of a GPU to say that its memory is full, as one error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gatefuse_kernels.bench.errors import NoMemoryError


@contextmanager
def memory_watched(doing: Callable[[], str]) -> Iterator[None]:
    """Turns what torch, the driver and cuBLAS raise into `NoMemoryError`.

    Args:
        doing: what is being measured, asked for when it fails.

    Raises:
        NoMemoryError: the device's memory does not hold it.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_lack_of_memory(error):
            raise
        # Of torch's account of its allocator, what was asked for.
        asked = str(error).partition(" GPU ")[0].partition("\n")[0]
        raise NoMemoryError(f"{doing()}: the GPU has too little memory: {asked}") from error


def _is_lack_of_memory(error: RuntimeError) -> bool:
    """Torch's allocator has a class for it; the driver's and cuBLAS's refusals come as texts."""
    texts = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in texts)
