"""Fused gated-MLP kernels, their unfused baselines, and honest accounting of what they move."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gatefuse_kernels.packed import MlpWeights

__all__ = ["swiglu_mlp"]


def swiglu_mlp(x: "torch.Tensor", weights: "MlpWeights") -> "torch.Tensor":
    """Compute `down(act(gate(x)) * up(x))`, fused, on the weights' device.

    Args:
        x: `[..., H]` in the weights' dtype and on their device.
        weights: for example `MlpWeights.pack(gate, up, down)`.

    Returns:
        `[..., H]`, same dtype.

    Raises:
        ValueError: the last dimension, dtype or device does not match.
    """
    # Imported here: shapes, traffic, ledger and expression are usable without torch.
    from gatefuse_kernels.standalone import fused_call

    return fused_call(x, weights)
