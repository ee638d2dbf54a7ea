"""`triton.jit` with a type: Triton ships no annotations, and a kernel is launched, not called."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import triton
import triton.language as tl

from gatefuse_kernels.tensor_maps import TiledMatrix, described, remembering

_INTEGERS = ("rows", "shared_columns", "sharing_programs")
"""What kernels are told at run time, besides pointers."""


class Kernel(Protocol):
    """A jitted function: `kernel[grid](...)` from the host, `kernel(...)` from another kernel."""

    @property
    def arg_names(self) -> list[str]:
        """Parameters in order."""

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


class Variant:
    """One variant of a kernel on one device, launched at little cost to the host.

    The first launch compiles, or finds what was compiled, by way of Triton's own handling of
    arguments, which takes some 25 us of Python each time. Later ones hand their arguments to the
    compiled kernel at once. So all launches must agree in whatever Triton would tell variants apart
    by: dtypes, the shapes of descriptors' tiles, and for a kernel that specialises on pointers that
    they start on 16 bytes.
    """

    def __init__(self, kernel: Kernel, constants: Mapping[str, object], **options: object) -> None:
        """Compile nothing yet.

        Args:
            kernel: whose constexprs come after its other parameters.
            constants: of all its constexprs.
            options: of the compiler and the launch, such as `num_warps`.
        """
        self._kernel = kernel
        self._constants = constants
        self._options = options
        self._values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self._compiled: Any = None
        self._describes = False

    def launch(self, programs: int, *arguments: object) -> None:
        """Launch on the current stream and device.

        Args:
            programs: of the grid, at least 1.
            arguments: the parameters that are not constexprs, in order; a `TiledMatrix` for a descriptor.
        """
        if self._compiled is None:
            # None in the interpreter, which has nothing compiled.
            compiled = self._kernel[(programs,)](
                *described(arguments), **self._constants, **self._options
            )
            has_matrices = any(type(each) is TiledMatrix for each in arguments)
            keeper = remembering(compiled) if has_matrices and compiled is not None else None
            self._compiled = keeper or compiled
            self._describes = has_matrices and keeper is None
            return
        given = described(arguments) if self._describes else arguments
        self._compiled[(programs, 1, 1)](*given, *self._values)
