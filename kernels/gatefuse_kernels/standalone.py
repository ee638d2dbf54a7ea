"""`swiglu_mlp` for use without the service: no ledger to keep, leading dimensions allowed."""

from typing import cast

import torch

from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan.own_table import own_table
from gatefuse_kernels.shapes import MAX_ROWS
from gatefuse_kernels.weights.packed import MlpWeights


class _NoLedger(Ledger):
    """Discards counts: nobody would drain them."""

    def count(self, traffic: object) -> None:
        """Do nothing."""


def _mlp(weights: MlpWeights, deterministic: bool) -> Mlp:
    """Built once for the weights, and kept with them: plans, descriptors, counters, self-checks."""
    key = (_mlp, deterministic)
    held = weights.built.get(key)
    if held is None:
        device = weights.device
        table = own_table(profile_of(device)) if device.type == "cuda" else None
        held = weights.built[key] = build_mlp(
            "fused",
            weights,
            ledger=_NoLedger(),
            max_rows=MAX_ROWS,
            deterministic=deterministic,
            table=table,
        )
    return cast("Mlp", held)


def fused_call(x: torch.Tensor, weights: MlpWeights, deterministic: bool) -> torch.Tensor:
    """See `gatefuse_kernels.swiglu_mlp`."""
    if x.dim() == 0 or x.shape[-1] != weights.shape.hidden:
        raise ValueError(f"x must be [..., {weights.shape.hidden}], got {list(x.shape)}")
    mlp = _mlp(weights, deterministic)
    rows = x.reshape(-1, weights.shape.hidden).contiguous()
    out = torch.empty_like(rows)
    mlp(rows, out)
    return out.view(x.shape)
