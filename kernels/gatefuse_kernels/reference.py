"""The truth in float64, the unfused baseline, and the measure of distance between answers."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from gatefuse_kernels.error_limits import FUSED_ERROR_LIMIT
from gatefuse_kernels.shapes import Activation
from gatefuse_kernels.weights.packed import MlpWeights

_FLOAT32_SUMS = 1e-4
"""A limit below this is float32's."""

_TENSOR_CORE_SUMS = 5e-5
"""What they lose, as they truncate each addend: 2.6e-5 measured on an H200 at 4096x14336."""


def activate(gate: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation as torch computes it, out of place."""
    if activation is Activation.SILU:
        return functional.silu(gate)
    if activation is Activation.RELU:
        return functional.relu(gate)
    return functional.gelu(gate, approximate=_gelu_form(activation))


def activate_(gate: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation as torch computes it, in place."""
    if activation is Activation.SILU:
        return functional.silu(gate, inplace=True)
    if activation is Activation.RELU:
        return gate.relu_()
    result: torch.Tensor = torch.ops.aten.gelu_(gate, approximate=_gelu_form(activation))
    return result


def _gelu_form(activation: Activation) -> str:
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
    return _gated(x, weights) @ weights.down.double().t()


def _gated(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    x64 = x.double()
    gate = x64 @ weights.gate.double().t()
    up = x64 @ weights.up.double().t()
    return activate(gate, weights.activation) * up


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
        rounding_error: of the float64 answer with h and the output rounded once each, which is
            what the fused form does; for the same inputs.
        eager_error: of the five rounded ops, for the same inputs.
        limit: the dtype's `FUSED_ERROR_LIMIT`.
        outputs: elements of the answer.
    """

    error: float
    rounding_error: float
    eager_error: float
    limit: float
    outputs: int

    @property
    def is_fused_grade(self) -> bool:
        """No worse than the two roundings alone, nor than eager; and within the limit if they are.

        Few outputs scatter, by 1 / sqrt(outputs). In 14,000 draws of 37 to 1000 outputs, float32
        sums rounded twice: the error's own standard deviation was 0.9 to 1.45 times that, so four
        of them are allowed above the limit, which is for large answers. Sums that round the other
        way moved the error by less than 1.5 times that from the two roundings of the same inputs.
        The sums of tensor cores add an error of their own, which shows beside fp16's roundings.
        """
        if self.outputs == 0:
            return self.error == 0
        scatter = 1 / math.sqrt(self.outputs)
        if self.limit < _FLOAT32_SUMS:
            # Float32 sums differ in nothing but their order: there is nothing to compare.
            return self.error <= self.limit
        rounding = math.hypot(self.rounding_error, _TENSOR_CORE_SUMS) * (1 + 2 * scatter)
        eager = self.eager_error * (1 + 2 * scatter)
        # Of a few weights the roundings themselves can lose more.
        limit = max(self.limit * (1 + 6 * scatter), self.rounding_error)
        return self.error <= min(rounding, eager, limit)


@dataclass(frozen=True, eq=False)
class Truth:
    """The exact answer for some rows, ready to hold many answers against.

    Attributes:
        exact: `[M, H]` float64.
        rounding_error: see `Accuracy`.
        eager_error: likewise.
        limit: likewise.
    """

    exact: torch.Tensor
    rounding_error: float
    eager_error: float
    limit: float

    @classmethod
    def of(cls, x: torch.Tensor, weights: MlpWeights) -> "Truth":
        """Compute it for x `[M, H]`, and what the two roundings and eager lose on the same rows."""
        h, down = _gated(x, weights), weights.down.double().t()
        exact = h @ down
        rounded = (h.to(x.dtype).double() @ down).to(x.dtype)
        return cls(
            exact,
            relative_error(rounded, exact),
            relative_error(eager_mlp(x, weights), exact),
            FUSED_ERROR_LIMIT[weights.dtype],
        )

    def accuracy(self, answer: torch.Tensor) -> Accuracy:
        """Hold an answer `[M, H]` against the exact one."""
        return Accuracy(
            relative_error(answer, self.exact),
            self.rounding_error,
            self.eager_error,
            self.limit,
            self.exact.numel(),
        )


def measure_accuracy(answer: torch.Tensor, x: torch.Tensor, weights: MlpWeights) -> Accuracy:
    """Compare an answer `[M, H]` for x `[M, H]` with the truth, and the baselines with it too."""
    return Truth.of(x, weights).accuracy(answer)
