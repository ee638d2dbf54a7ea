"""A variant's launches: Triton's own path once, then the compiled kernel at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from gatefuse_kernels.jit import Kernel, Variant


class FakeKernel:
    """Stands for a jitted kernel of (x, rows, WIDTH, BLOCK), and for what it compiles to."""

    arg_names = ("x", "rows", "WIDTH", "BLOCK")

    def __init__(self, has_compiled: bool) -> None:
        self.has_compiled = has_compiled
        self.jitted: list[tuple[Any, ...]] = []
        self.direct: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*args: object, **named: object) -> FakeCompiled | None:
            self.jitted.append((grid, args, named))
            return FakeCompiled(self) if self.has_compiled else None

        return launch


class FakeCompiled:
    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args: self._kernel.direct.append((grid, args))


def _variant(kernel: FakeKernel) -> Variant:
    # Named in another order than the kernel's.
    return Variant(cast(Kernel, kernel), {"BLOCK": 32, "WIDTH": 7}, num_warps=4)


def test_the_first_launch_goes_through_triton_and_later_ones_do_not() -> None:
    kernel = FakeKernel(has_compiled=True)
    variant = _variant(kernel)
    variant.launch(3, "x", 5)
    variant.launch(4, "y", 6)
    assert kernel.jitted == [((3,), ("x", 5), {"BLOCK": 32, "WIDTH": 7, "num_warps": 4})]
    assert kernel.direct == [((4, 1, 1), ("y", 6, 7, 32))], "constants follow in the kernel's order"


def test_where_nothing_is_compiled_every_launch_goes_through_triton() -> None:
    kernel = FakeKernel(has_compiled=False)
    variant = _variant(kernel)
    for rows in (1, 2):
        variant.launch(rows, "x", rows)
    assert [args for _, args, _ in kernel.jitted] == [("x", 1), ("x", 2)]
    assert not kernel.direct
