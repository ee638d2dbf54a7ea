"""The call protocol every backend keeps, and the checks of its arguments."""

from typing import Protocol

import torch

from gatefuse_kernels.shapes import check_rows
from gatefuse_kernels.weights.packed import MlpWeights


class Capturable(Protocol):
    """Work on the rows of one buffer that leaves its answer in another."""

    def warm_up(self) -> None:
        """Compile and measure whatever a call would otherwise compile or measure."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute out from x on the current stream; see `Mlp`."""


class Mlp(Protocol):
    """One MLP ready to run on its weights' device."""

    @property
    def backend(self) -> str:
        """What runs: fused, eager or compiled ("auto" is resolved)."""

    @property
    def description(self) -> str:
        """One sentence: what runs on this device."""

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """Ascending row counts worth a CUDA graph each, up to max_rows; none on a CPU."""

    def padded_rows(self, rows: int) -> int:
        """Rows really computed for `rows` given ones."""

    def warm_up(self) -> None:
        """Compile and measure whatever a call would otherwise compile or measure."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute `out = MLP(x)` on the current stream; both `[M, H]`, 0 <= M <= max_rows.

        Every launch is counted in the ledger. Nothing is launched for M = 0. After `warm_up` the
        call can be captured into a CUDA graph; calls on one stream, and the graphs captured from
        it, share scratch memory and must follow one another.

        Raises:
            ValueError: a shape, dtype, device or stride is wrong.
        """


def check_call(x: torch.Tensor, out: torch.Tensor, weights: MlpWeights, max_rows: int) -> int:
    """Check the arguments of an `Mlp` call; return M.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    down = weights.down
    return check_pair(x, out, down.shape[0], (down.dtype, down.device), max_rows)


def check_pair(
    x: torch.Tensor,
    out: torch.Tensor,
    columns: int,
    kind: tuple[torch.dtype, torch.device],
    max_rows: int,
) -> int:
    """Check that x and out are contiguous `[M, columns]` of one dtype and device; return M.

    Raises:
        ValueError: they are not, or M is above `max_rows`.
    """
    for name, tensor in (("x", x), ("out", out)):
        if tensor.dim() != 2 or tensor.shape[1] != columns:
            raise ValueError(f"{name} must be [M, {columns}], got {list(tensor.shape)}")
        if (tensor.dtype, tensor.device) != kind:
            raise ValueError(
                f"{name} must be {kind[0]} on {kind[1]}, got {tensor.dtype} on {tensor.device}"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous")
    if x.shape[0] != out.shape[0]:
        raise ValueError(f"x has {x.shape[0]} rows but out {out.shape[0]}")
    check_rows(x.shape[0], max_rows)
    return x.shape[0]
