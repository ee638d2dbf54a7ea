"""`triton.jit` with a type: Triton ships no annotations, and a kernel is launched, not called."""

from collections.abc import Callable
from typing import Any, Protocol, cast

import triton


class Kernel(Protocol):
    """A jitted function: `kernel[grid](...)` from the host, `kernel(...)` from another kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """A launcher for this grid."""

    def __call__(self, *args: Any) -> Any:
        """The device function; only inside another kernel."""


def kernel(function: Callable[..., Any]) -> Kernel:
    """Jit a kernel; `rows` never specialises, so no row count compiles on the request path."""
    return cast(Kernel, triton.jit(function, do_not_specialize=["rows"]))


def device(function: Callable[..., Any]) -> Kernel:
    """Jit a function that kernels call."""
    return cast(Kernel, triton.jit(function))
