"""`triton.jit` with a type: Triton ships no annotations, and a kernel is launched, not called."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import triton
import triton.language as tl
from triton.experimental import gluon

from gatefuse_kernels.launch.direct_launch import DirectLaunch, direct_launch
from gatefuse_kernels.launch.tensor_maps import described

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
    return cast(Kernel, triton.jit(function, do_not_specialize=_integers_of(function)))


def device(function: Callable[..., Any]) -> Kernel:
    """Jit a function that kernels call."""
    return cast(Kernel, triton.jit(function))


def gluon_kernel(function: Callable[..., Any]) -> Kernel:
    """Jit a kernel written in Gluon, in which layouts, barriers and the work of each warp are explicit."""
    return cast(Kernel, gluon.jit(function, do_not_specialize=_integers_of(function)))


def gluon_device(function: Callable[..., Any]) -> Kernel:
    """Jit a function that kernels in Gluon call; they call those of `device`, too."""
    return cast(Kernel, gluon.jit(function))


def _integers_of(function: Callable[..., Any]) -> list[str]:
    return [name for name in _INTEGERS if name in inspect.signature(function).parameters]


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
    arguments. Later ones hand their arguments to the compiled kernel at once; see `direct_launch`. So
    all launches must agree in whatever Triton would tell variants apart by: dtypes, the shapes of
    descriptors' tiles, and for a kernel that specialises on pointers that they start on 16 bytes.
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
        self._launch: DirectLaunch | None = None

    def launch(self, programs: int, *arguments: object) -> None:
        """Launch on the current stream and device.

        Args:
            programs: of the grid, at least 1.
            arguments: the parameters that are not constexprs, in order; a `TiledMatrix` for a descriptor.
        """
        if self._launch is not None:
            self._launch(programs, arguments + self._values)
        elif self._compiled is not None:
            count = len(arguments) + len(self._values)
            self._launch = direct_launch(self._compiled, count) or _launch_of(self._compiled)
            self._launch(programs, arguments + self._values)
        else:
            # None in the interpreter, which has nothing compiled.
            self._compiled = self._kernel[(programs,)](
                *described(arguments), **self._constants, **self._options
            )


def _launch_of(compiled: Any) -> DirectLaunch:
    """Triton's own launch of what it compiled."""

    def launch(programs: int, arguments: tuple[object, ...]) -> None:
        compiled[(programs, 1, 1)](*described(arguments))

    return launch
