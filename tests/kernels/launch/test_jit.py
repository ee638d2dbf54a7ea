"""A variant's launches: Triton's own path once, then the compiled kernel at once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from gatefuse_kernels.launch import jit
from gatefuse_kernels.launch.jit import Kernel, Variant
from gatefuse_kernels.launch.tensor_maps import TiledMatrix


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
    """With a launcher that is not known: a launch goes by the compiled kernel's own path."""

    run = SimpleNamespace(launch=None)

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


def test_a_launcher_that_is_known_is_called_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(has_compiled=True)
    launched: list[tuple[int, tuple[object, ...]]] = []

    def direct_launch(compiled: object, count: int) -> Callable[..., None]:
        assert isinstance(compiled, FakeCompiled)
        assert count == 4
        return lambda programs, arguments: launched.append((programs, arguments))

    monkeypatch.setattr(jit, "direct_launch", direct_launch)
    variant = _variant(kernel)
    variant.launch(3, "x", 5)
    variant.launch(4, "y", 6)
    assert launched == [(4, ("y", 6, 7, 32))]
    assert not kernel.direct


def test_matrices_are_described_where_triton_launches() -> None:
    kernel = FakeKernel(has_compiled=True)
    variant = _variant(kernel)
    for rows in (1, 2):
        variant.launch(1, TiledMatrix(torch.zeros(rows, 16), (16, 16)), rows)
    ((_, (first, _), _),) = kernel.jitted
    ((_, (second, *_)),) = kernel.direct
    for descriptor, rows in ((first, 1), (second, 2)):
        assert isinstance(descriptor, TensorDescriptor)
        assert descriptor.shape == [rows, 16]
