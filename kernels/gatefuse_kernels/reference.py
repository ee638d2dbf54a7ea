"""The truth in float64, the unfused baseline, and the measure of distance between answers."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.shapes import Activation, DType

FUSED_ERROR_LIMIT = {DType.BF16: 2.6e-3, DType.FP16: 3.2e-4, DType.FP32: 1e-5}
"""Largest relative Frobenius error of a form that applies the gate to float32 sums."""


def activate(gate: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation as torch computes it, out of place."""
    if activation is Activation.SILU:
        return functional.silu(gate)
    return functional.gelu(gate, approximate=gelu_form(activation))


def activate_(gate: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation as torch computes it, in place."""
    if activation is Activation.SILU:
        return functional.silu(gate, inplace=True)
    result: torch.Tensor = torch.ops.aten.gelu_(gate, approximate=gelu_form(activation))
    return result


def gelu_form(activation: Activation) -> str:
    """What torch calls this GELU: "none" is the erf form."""
    return "tanh" if activation is Activation.GELU_TANH else "none"


def mlp_reference(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """The exact answer for these (already rounded) inputs and weights.

    Args:
        x: `[M, H]`, any float dtype, on the weights' device.
        weights: the MLP.

    Returns:
        `[M, H]` float64.
    """
    x64 = x.double()
    gate = x64 @ weights.gate.double().t()
    up = x64 @ weights.up.double().t()
    return (activate(gate, weights.activation) * up) @ weights.down.double().t()


def eager_mlp(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """The baseline as a model writes it: five ops, each rounding to the weights' dtype.

    Args:
        x: `[M, H]` in the weights' dtype.
        weights: the MLP.

    Returns:
        `[M, H]` in the weights' dtype.
    """
    gate = x @ weights.gate.t()
    up = x @ weights.up.t()
    return (activate(gate, weights.activation) * up) @ weights.down.t()


def relative_error(answer: torch.Tensor, truth: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of the truth; 0 for two empty answers."""
    if truth.numel() == 0:
        return 0.0
    difference = torch.linalg.vector_norm(answer.double() - truth.double())
    return float(difference / torch.linalg.vector_norm(truth.double()))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """An answer's relative error beside what it may be.

    Attributes:
        error: of the answer, against float64.
        eager_error: of the five rounded ops, for the same inputs.
        limit: the dtype's `FUSED_ERROR_LIMIT`.
        outputs: elements of the answer.
    """

    error: float
    eager_error: float
    limit: float
    outputs: int

    @property
    def is_fused_grade(self) -> bool:
        """Within the limit, and no worse than eager; few outputs get a statistical allowance."""
        allowance = 1 + 2 / math.sqrt(self.outputs) if self.outputs else 1.0
        # Eager's float32 sums differ in nothing but their order: there is nothing to compare.
        bound = self.limit if self.limit < 1e-4 else min(self.limit, self.eager_error)
        return self.error <= bound * allowance


def measure_accuracy(answer: torch.Tensor, x: torch.Tensor, weights: MlpWeights) -> Accuracy:
    """Compare an answer `[M, H]` for x `[M, H]` with the truth, and eager's with it too."""
    truth = mlp_reference(x, weights)
    return Accuracy(
        relative_error(answer, truth),
        relative_error(eager_mlp(x, weights), truth),
        FUSED_ERROR_LIMIT[weights.dtype],
        truth.numel(),
    )
