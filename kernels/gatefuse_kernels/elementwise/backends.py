"""One entry to every way of computing an elementwise program."""

from collections.abc import Mapping
from typing import Literal, get_args

import torch

from gatefuse_kernels.elementwise.call import Elementwise, Setting
from gatefuse_kernels.elementwise.compiled import CompiledElementwise, has_cpp_compiler
from gatefuse_kernels.elementwise.cpu import BlockedElementwise
from gatefuse_kernels.elementwise.eager import EagerElementwise
from gatefuse_kernels.expression import Program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import DType

ElementwiseBackend = Literal["fused", "eager", "compiled", "auto"]
ELEMENTWISE_BACKENDS: tuple[str, ...] = get_args(ElementwiseBackend)


_INEXACT = ("erf",)
"""What Inductor's C++ computes to an absolute error, 1.5e-7, where torch's own op keeps to a relative one."""


def build_elementwise(
    backend: str,
    program: Program,
    *,
    vectors: Mapping[str, torch.Tensor],
    ledger: Ledger,
    dtype: DType,
    device: torch.device | str,
    max_rows: int,
    columns: int | None = None,
) -> Elementwise:
    """Make a runnable expression.

    Args:
        backend: fused, eager, compiled, or auto, which is fused. Without a GPU, fused is a C++ loop made
            by torch.compile or, where there is no C++ compiler, torch ops block by block.
        program: from `parse_program`.
        vectors: the per-column constants, contiguous `[C]` of `dtype` on `device`.
        ledger: counts each launch.
        dtype: element type of inputs and outputs.
        device: where they live.
        max_rows: the largest M of a call.
        columns: C, or None for any; with vectors it is theirs.

    Raises:
        ValueError: the backend is unknown, a vector does not fit, or `max_rows` is out of range.
        BackendUnavailableError: the machine lacks what the backend needs.
    """
    if backend not in ELEMENTWISE_BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; use one of {', '.join(ELEMENTWISE_BACKENDS)}"
        )
    setting = Setting(program, vectors, ledger, dtype, _place(device), max_rows, columns)
    if backend == "eager":
        return EagerElementwise(setting)
    if backend == "compiled":
        return CompiledElementwise(setting)
    if setting.device.type == "cuda":
        # Imported here so that a machine without a GPU never loads Triton.
        from gatefuse_kernels.elementwise.fused import FusedElementwise

        return FusedElementwise(setting)
    if has_cpp_compiler() and not any(step.op in _INEXACT for step in program.steps):
        return CompiledElementwise(setting, "fused")
    return BlockedElementwise(setting)


def _place(device: torch.device | str) -> torch.device:
    """The device by its number, as tensors have it."""
    place = torch.device(device)
    return torch.empty(0, device=place).device if place.type == "cuda" else place
