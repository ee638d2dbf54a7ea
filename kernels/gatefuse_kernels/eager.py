"""The unfused baseline: five torch ops, each reading and writing whole matrices."""

from collections.abc import Callable

import torch

from gatefuse_kernels import traffic
from gatefuse_kernels.launches import captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.reference import activate_
from gatefuse_kernels.shapes import row_buckets
from gatefuse_kernels.traffic import KernelTraffic, helper_launch
from gatefuse_kernels.workspace import temporary

_Op = Callable[[], object]


class EagerMlp:
    """gate, up, activation, multiply, down: one torch op each, results kept in place.

    On CUDA a product may launch a helper beside its GEMM (cuBLAS's split-K reduction). How many is
    measured once per row count: for the row buckets in `warm_up`, for any other at its first call,
    which therefore takes a fraction of a millisecond longer.
    """

    backend = "eager"

    def __init__(self, weights: MlpWeights, ledger: Ledger, max_rows: int) -> None:
        """Compute with `weights` where they live."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows
        self._launches: dict[int, tuple[KernelTraffic, ...]] = {}

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        return f"eager: five torch ops on {self._weights.device.type}, each rounding its result"

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Create library handles and measure the launches of each row bucket."""
        like = self._weights.down
        for rows in row_buckets(self._max_rows):
            x = torch.zeros(rows, like.shape[0], dtype=like.dtype, device=like.device)
            ops = self._ops(x, torch.empty_like(x))
            for op in ops:
                op()
            self._measure(rows, ops)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run the five ops; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        ops = self._ops(x, out)
        for op in ops:
            op()
        for launch in self._launches.get(rows) or self._measure(rows, ops):
            self._ledger.count(launch)

    def _ops(self, x: torch.Tensor, out: torch.Tensor) -> tuple[_Op, ...]:
        weights = self._weights
        rows, intermediate = x.shape[0], weights.down.shape[1]
        gate = temporary("eager_gate", x, rows, intermediate)
        up = temporary("eager_up", x, rows, intermediate)
        return (
            lambda: torch.mm(x, weights.gate.t(), out=gate),
            lambda: torch.mm(x, weights.up.t(), out=up),
            lambda: activate_(gate, weights.activation),
            lambda: gate.mul_(up),
            lambda: torch.mm(gate, weights.down.t(), out=out),
        )

    def _measure(self, rows: int, ops: tuple[_Op, ...]) -> tuple[KernelTraffic, ...]:
        plan = traffic.eager_mlp(self._weights.shape, rows, self._weights.dtype.itemsize)
        if self._weights.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                # Cannot capture inside a capture; the graph's own node count checks the five.
                return plan
            with torch.cuda.device(self._weights.device):
                plan = tuple(
                    launch
                    for op, base in zip(ops, plan, strict=True)
                    for launch in _with_helpers(base, len(captured_kernels(op)))
                )
        self._launches[rows] = plan
        return plan


def _with_helpers(base: KernelTraffic, launches: int) -> tuple[KernelTraffic, ...]:
    return (base, *[helper_launch(base)] * (launches - 1))
