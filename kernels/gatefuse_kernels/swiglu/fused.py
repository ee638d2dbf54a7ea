"""The fused MLP on a GPU: two Triton launches, h the only intermediate that reaches memory."""

import torch

from gatefuse_kernels import plan, traffic
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.swiglu.down import launch_down
from gatefuse_kernels.swiglu.gate_up import launch_gate_up

_ALIGNMENT_BYTES = 16
"""What the compiled kernels assume of a pointer."""


class FusedMlp:
    """gate_up with the activation on float32 sums, then down; any M, H and I."""

    backend = "fused"

    def __init__(self, weights: MlpWeights, ledger: Ledger, max_rows: int) -> None:
        """Compute with `weights` on their GPU."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows
        self._capability, _ = torch.cuda.get_device_capability(weights.device)

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        return (
            "fused: two Triton launches (gate and up products with the gate applied to float32 "
            "sums, then down)"
        )

    def padded_rows(self, rows: int) -> int:
        """No padding: row tails are masked."""
        return rows

    def warm_up(self) -> None:
        """Compile every variant that 1..max_rows rows can need."""
        like = self._weights.down
        for rows in plan.row_classes(self._max_rows, self._weights.dtype, self._capability):
            x = torch.zeros(rows, like.shape[0], dtype=like.dtype, device=like.device)
            self._launch(x, torch.empty_like(x))

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Launch the two kernels; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        # A view at an odd offset would make Triton compile an unaligned variant on the spot.
        aligned_x = x if _is_aligned(x) else x.clone()
        aligned_out = out if _is_aligned(out) else torch.empty_like(out)
        self._launch(aligned_x, aligned_out)
        for launch in traffic.fused_mlp(self._weights.shape, rows, self._weights.dtype.itemsize):
            self._ledger.count(launch)
        if aligned_out is not out:
            out.copy_(aligned_out)

    def _launch(self, x: torch.Tensor, out: torch.Tensor) -> None:
        weights = self._weights
        tiles = plan.choose(weights.shape, x.shape[0], weights.dtype, self._capability)
        # Triton launches on the current device whatever device its tensors are on.
        with torch.cuda.device(x.device):
            h = torch.empty(x.shape[0], weights.down.shape[1], dtype=x.dtype, device=x.device)
            launch_gate_up(x, weights, h, tiles.gate_up)
            launch_down(h, weights, out, tiles.down)


def _is_aligned(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % _ALIGNMENT_BYTES == 0
