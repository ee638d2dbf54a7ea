"""Launches without Triton's Python: what the compiled function is given, by the launchers that are known."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.nvidia.driver import CudaLauncher, make_tensordesc_arg, wrap_handle_tensordesc

from gatefuse_kernels.launch import direct_launch as module
from gatefuse_kernels.launch.direct_launch import direct_launch
from gatefuse_kernels.launch.tensor_maps import TiledMatrix

STREAM = 77
Launched = list[tuple[object, ...]]


class Driver:
    """Stands for Triton's driver of device 1, which is on a stream of its own."""

    active = SimpleNamespace(
        get_current_device=lambda: 1, get_current_stream=lambda device: STREAM + device
    )


@pytest.fixture(autouse=True)
def a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "driver", Driver)


class Launcher36:
    """As Triton 3.6's: a kernel's arguments follow the launcher's one by one."""

    global_scratch_size = profile_scratch_size = 0

    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch = launch

    def __call__(self, x: int, y: int, z: int, stream: int, function: str, *args: object) -> None:
        self.launch(x, y, z, stream, function, False, True, None, None, *args)


def installed(launch: Callable[..., None]) -> Any:
    """The installed Triton's own launcher, without a GPU to make it for."""
    launcher = CudaLauncher.__new__(CudaLauncher)
    launcher.launch = launch
    launcher.num_ctas = 1
    launcher.global_scratch_size = launcher.profile_scratch_size = 0
    launcher.global_scratch_align = launcher.profile_scratch_align = 1
    launcher.launch_cooperative_grid, launcher.launch_pdl = False, True
    launcher.arg_annotations, launcher.kernel_signature = ["annotations"], b"signature"
    return launcher


def compiled(run: Any) -> Any:
    return SimpleNamespace(run=run, function="function", packed_metadata="metadata")


def as_hooked(run: Any, *arguments: object) -> None:
    """How Triton itself launches 3 programs where no profiler has hooked in."""
    run(3, 1, 1, STREAM + 1, "function", "metadata", None, None, None, *arguments)


@pytest.mark.parametrize("make", [Launcher36, installed])
def test_a_direct_launch_is_given_what_tritons_own_gives(make: Callable[..., Any]) -> None:
    launched: Launched = []
    # Not a Python function, as the compiled one is none.
    run = make(lambda *arguments: launched.append(arguments))
    builtin = Builtin(launched)
    run.launch = builtin
    launch = direct_launch(compiled(run), 3)
    assert launch is not None
    assert not launched, "finding out launches nothing"
    launch(3, ("x", 5, True))
    as_hooked(run, "x", 5, True)
    direct, tritons = launched
    assert direct == tritons
    assert run.launch is builtin, "Triton's own is left as it is"


class Builtin:
    """Notes what it is called with; no Python function."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched

    def __call__(self, *arguments: object) -> None:
        self._launched.append(arguments)


def test_a_descriptor_is_encoded_once_and_given_in_its_place() -> None:
    launched: Launched = []
    signature = {0: "*fp32", 1: "tensordesc<fp32[4,8]>", 2: "i32"}
    run = installed(wrap_handle_tensordesc(Builtin(launched), signature, [None]))
    launch = direct_launch(compiled(run), 3)
    assert launch is not None
    matrix = TiledMatrix(torch.zeros(3, 16), (4, 8))
    launch(3, ("x", matrix, 5))
    as_hooked(run, "x", matrix.descriptor(), 5)
    direct, tritons = launched
    assert direct[:-1] == tritons[:-1]
    expanded = make_tensordesc_arg(matrix.descriptor(), None)
    for given in (direct[-1], tritons[-1]):
        assert isinstance(given, list)
        assert given[1] is matrix.matrix
        assert [given[0], *given[2:]] == ["x", *expanded[1:], 5]


@pytest.mark.parametrize("what", ["scratch", "sizes unknown", "a wrapper", "an order"])
def test_a_launcher_that_is_not_known_is_left_to_triton(what: str) -> None:
    run: Any = Launcher36(Builtin([]))
    if what == "scratch":
        run.global_scratch_size = 128
    elif what == "sizes unknown":
        run = SimpleNamespace(launch=run.launch)
    elif what == "a wrapper":
        run.launch = lambda *arguments: None
    else:
        run = Reordering(Builtin([]))
    assert direct_launch(compiled(run), 2) is None


class Reordering(Launcher36):
    """Of some later Triton, say: the kernel's arguments come first."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: str, *args: object) -> None:
        self.launch(*args, x, y, z, stream, function)
