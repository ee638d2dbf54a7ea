"""The backend `textbook`: the tutorial's single kernel, to serve and measure beside the others."""

import torch

from gatefuse_kernels import traffic
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.plan import graph_buckets
from gatefuse_kernels.plan.textbook import FEW_ROWS, textbook_plans, textbook_tile
from gatefuse_kernels.swiglu.alignment import run_aligned
from gatefuse_kernels.swiglu.textbook import launch_textbook
from gatefuse_kernels.weights.packed import MlpWeights


class TextbookMlp:
    """One launch, which computes gate and up again for every column tile; any M, H and I."""

    backend = "textbook"

    def __init__(self, weights: MlpWeights, ledger: Ledger, max_rows: int) -> None:
        """Compute with `weights` on their GPU."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        shape, dtype = self._weights.shape, self._weights.dtype
        columns = textbook_tile(shape, self._max_rows, dtype).columns
        return (
            "textbook: one Triton launch, which computes gate and up "
            f"{-(-shape.hidden // columns)} times over"
        )

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """See `Mlp`."""
        weights = self._weights
        plans = textbook_plans(weights.shape, weights.dtype)
        device = profile_of(weights.device)
        return graph_buckets(self._max_rows, weights.shape, weights.dtype, device, plans)

    def padded_rows(self, rows: int) -> int:
        """No padding: row tails are masked."""
        return rows

    def warm_up(self) -> None:
        """Compile both variants."""
        like = self._weights.down
        for rows in {1, min(self._max_rows, FEW_ROWS + 1)}:
            x = torch.zeros(rows, like.shape[0], dtype=like.dtype, device=like.device)
            self._launch(x, torch.empty_like(x))

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Launch the kernel; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        run_aligned(x, out, self._launch)
        weights = self._weights
        tile = textbook_tile(weights.shape, rows, weights.dtype)
        self._ledger.count(traffic.textbook_mlp(weights.shape, rows, weights.dtype.itemsize, tile))

    def _launch(self, x: torch.Tensor, out: torch.Tensor) -> None:
        weights = self._weights
        tile = textbook_tile(weights.shape, x.shape[0], weights.dtype)
        # Triton launches on the current device whatever device its tensors are on.
        with torch.cuda.device(x.device):
            launch_textbook(x, weights, out, tile)
