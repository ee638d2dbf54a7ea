"""`swiglu_mlp` for use without the service: no ledger to keep, leading dimensions allowed."""

import torch

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.shapes import MAX_ROWS


class _NoLedger(Ledger):
    """Discards counts: nobody would drain them."""

    def count(self, traffic: object) -> None:
        """Do nothing."""


def fused_call(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """See `gatefuse_kernels.swiglu_mlp`."""
    if x.dim() == 0 or x.shape[-1] != weights.shape.hidden:
        raise ValueError(f"x must be [..., {weights.shape.hidden}], got {list(x.shape)}")
    # Building is cheap: what is costly (kernels, float32 weights on CPU) is kept elsewhere.
    mlp = build_mlp("fused", weights, ledger=_NoLedger(), max_rows=MAX_ROWS)
    rows = x.reshape(-1, weights.shape.hidden).contiguous()
    out = torch.empty_like(rows)
    mlp(rows, out)
    return out.view(x.shape)
