"""Every row of an answer against float64, at the price of a few rows' truth."""

import math
from dataclasses import dataclass

import torch

from gatefuse_kernels.bench.capture import Form
from gatefuse_kernels.error_limits import EAGER_ERROR_LIMIT
from gatefuse_kernels.reference import Accuracy, Truth, relative_error
from gatefuse_kernels.weights.packed import MlpWeights

_DISTINCT_ROWS = 32


@dataclass(frozen=True, slots=True)
class Checked:
    """What the check of one form found.

    Attributes:
        accuracy: of its worst answer.
        is_repeatable: all its answers have the same bits.
    """

    accuracy: Accuracy
    is_repeatable: bool


class Check:
    """Rows whose exact answers are known.

    At most 32 of them are distinct, and a large batch is made of those in random order: each row of
    its answer is compared, and only so many truths are computed.
    """

    def __init__(self, weights: MlpWeights, rows: int) -> None:
        """Draw the rows and compute the truth.

        Args:
            weights: any of the equal copies.
            rows: M.
        """
        device, hidden = weights.device, weights.shape.hidden
        generator = torch.Generator(device).manual_seed(rows)
        distinct = min(rows, _DISTINCT_ROWS)
        pool = torch.randn(distinct, hidden, generator=generator, device=device)
        order = torch.randperm(rows, generator=generator, device=device)
        self._source = torch.arange(rows, device=device) if rows <= distinct else order % distinct
        self._truth = Truth.of(pool.to(weights.down.dtype), weights)
        self._exact = self._truth.exact[self._source]
        self._limit = EAGER_ERROR_LIMIT[weights.dtype]
        self.x = pool.to(weights.down.dtype)[self._source]
        """`[M, H]`, what to compute."""

    def run(self, form: Form) -> Checked:
        """Replay every graph of a form twice, each time into NaN; its x must hold `self.x`."""
        worst = 0.0
        first: torch.Tensor | None = None
        is_repeatable = True
        for graph in (*form.graphs, *form.graphs):
            graph.answer.fill_(math.nan)
            graph.replay()
            error = relative_error(graph.answer, self._exact)
            # A NaN is no larger than anything, but must be the worst.
            worst = max(worst, math.inf if math.isnan(error) else error)
            bits = graph.answer.view(torch.uint8)
            if first is None:
                first = bits.clone()
            is_repeatable = is_repeatable and torch.equal(bits, first)
        return Checked(self._accuracy(worst), is_repeatable)

    def is_eager_grade(self, accuracy: Accuracy) -> bool:
        """Whether an answer is as right as torch's own ops would be."""
        return accuracy.error <= self._limit

    def _accuracy(self, error: float) -> Accuracy:
        truth = self._truth
        return Accuracy(
            error, truth.rounding_error, truth.eager_error, truth.limit, truth.exact.numel()
        )
