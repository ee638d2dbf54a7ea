"""`triton.jit` with a type: Triton ships no annotations, and a kernel is launched, not called."""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, cast

import triton
import triton.language as tl

_INTEGERS = ("rows", "whole_tiles")
"""What kernels are told at run time, besides pointers."""


class Kernel(Protocol):
    """A jitted function: `kernel[grid](...)` from the host, `kernel(...)` from another kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """A launcher for this grid."""

    def __call__(self, *args: Any) -> Any:
        """The device function; only inside another kernel."""


def kernel(function: Callable[..., Any]) -> Kernel:
    """Jit a kernel; no integer specialises, so no row count compiles on the request path."""
    names = [name for name in _INTEGERS if name in inspect.signature(function).parameters]
    return cast(Kernel, triton.jit(function, do_not_specialize=names))


def device(function: Callable[..., Any]) -> Kernel:
    """Jit a function that kernels call."""
    return cast(Kernel, triton.jit(function))


def kernel_of_any_arguments(function: Callable[..., Any]) -> Kernel:
    """Jit a kernel whose variants differ by dtypes and constexprs alone.

    No value, and no pointer's alignment, makes another variant; what the kernel needs to know of
    them it is told by constexprs. Integers are annotated with their type.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.annotation is not tl.constexpr]
    return cast(Kernel, triton.jit(function, do_not_specialize=names))
