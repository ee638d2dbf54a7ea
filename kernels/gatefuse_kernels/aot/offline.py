"""Triton where there is no GPU: a launch compiles for the architecture that is asked for, and runs nothing.

Going through the launchers themselves, and not around them, what is compiled is what would run: the
same argument types, the same alignment, the same constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class _AbsentGpu:
    """What compiling asks of a driver. Its device number is its architecture: Triton caches by number."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(capability: int) -> Iterator[list[tuple[str, Any]]]:
    """Collects (kernel's name, compiled kernel) of every launch within the block.

    Args:
        capability: 90 for sm_90.
    """
    compiled: list[tuple[str, Any]] = []
    driver = triton.runtime.driver
    # Its own reset asks for a GPU.
    active, original = driver._active, JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        compiled.append((self.__name__, kernel))
        return kernel

    JITFunction.run = compile_only
    driver.set_active(_AbsentGpu(capability))
    try:
        yield compiled
    finally:
        JITFunction.run = original
        driver._active = active
