"""`swiglu_mlp` for use without the service: no ledger to keep, leading dimensions allowed."""

import os
from functools import cache
from pathlib import Path

import torch

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.plan import PlanTable, read_table
from gatefuse_kernels.shapes import MAX_ROWS

PLAN_TABLE_VARIABLE = "GATEFUSE_PLAN_TABLE"


class _NoLedger(Ledger):
    """Discards counts: nobody would drain them."""

    def count(self, traffic: object) -> None:
        """Do nothing."""


@cache
def _own_table() -> PlanTable | None:
    """The table that the environment names, read once."""
    path = os.environ.get(PLAN_TABLE_VARIABLE)
    return read_table(Path(path)) if path else None


def fused_call(x: torch.Tensor, weights: MlpWeights, deterministic: bool) -> torch.Tensor:
    """See `gatefuse_kernels.swiglu_mlp`."""
    if x.dim() == 0 or x.shape[-1] != weights.shape.hidden:
        raise ValueError(f"x must be [..., {weights.shape.hidden}], got {list(x.shape)}")
    # Building is cheap: what is costly (kernels, float32 weights on CPU) is kept elsewhere.
    mlp = build_mlp(
        "fused",
        weights,
        ledger=_NoLedger(),
        max_rows=MAX_ROWS,
        deterministic=deterministic,
        table=_own_table(),
    )
    rows = x.reshape(-1, weights.shape.hidden).contiguous()
    out = torch.empty_like(rows)
    mlp(rows, out)
    return out.view(x.shape)
