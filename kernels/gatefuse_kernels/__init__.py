"""Fused gated-MLP kernels, their unfused baselines, and honest accounting of what they move."""

from typing import TYPE_CHECKING

from gatefuse_kernels.shapes import Activation, Rounding

if TYPE_CHECKING:
    import torch

    from gatefuse_kernels.weights.packed import MlpWeights

__all__ = ["Activation", "Rounding", "gated", "swiglu_mlp"]


def swiglu_mlp(
    x: "torch.Tensor", weights: "MlpWeights", *, deterministic: bool = False
) -> "torch.Tensor":
    """Compute `down(act(gate(x)) * up(x))`, fused, on the weights' device.

    On a GPU the plans of a table that the environment's `GATEFUSE_PLAN_TABLE` names (written by
    `gatefuse tune` on that GPU) go before the shipped ones.

    Args:
        x: `[..., H]` in the weights' dtype and on their device.
        weights: for example `MlpWeights.pack(gate, up, down)`.
        deterministic: a row's bits depend on the row and the weights alone, not on how many others
            there are or where it is among them.

    Returns:
        `[..., H]`, same dtype.

    Raises:
        ValueError: the last dimension, dtype or device does not match.
        PlanTableError: the named table cannot be used.
    """
    # Imported here: shapes, traffic, ledger and expression are usable without torch.
    from gatefuse_kernels.standalone import fused_call

    return fused_call(x, weights, deterministic)


def gated(
    gate: "torch.Tensor",
    up: "torch.Tensor",
    *,
    activation: Activation = Activation.SILU,
    rounding: Rounding = Rounding.FP32_EPILOGUE,
    out: "torch.Tensor | None" = None,
) -> "torch.Tensor":
    """Compute `act(gate) * up` in one launch, reading each operand where it lies.

    With `EAGER_EXACT` and bf16 or fp16 the answer of silu and relu is, bit for bit, that of torch's
    activation and product on the same device; the forms of gelu, and float32, follow torch's
    operations and may differ in the last place where its exp, erf or tanh does. `FP32_EPILOGUE` is
    within one rounding of the exact answer, and relative 1e-5 for gates down to -80.

    Args:
        gate: `[..., I]` in fp32, fp16 or bf16, rows dense and a fixed distance apart: a matrix, or
            a half of a merged `[..., 2I]`, as `gate, up = merged.chunk(2, dim=-1)` gives them.
        up: likewise, of gate's shape, dtype and device.
        activation: applied to gate.
        rounding: once, or after each of the two operations.
        out: likewise; where the answer goes. May be gate or up itself, but overlap neither in
            another way. By default a new tensor.

    Returns:
        `[..., I]`: out, or a new contiguous tensor.

    Raises:
        ValueError: shapes, dtypes or devices differ, a tensor would have to be copied, or out
            overlaps an operand.
    """
    # Imported here: shapes, traffic, ledger and expression are usable without torch.
    from gatefuse_kernels.gating import gated_call

    return gated_call(gate, up, activation, rounding, out)
