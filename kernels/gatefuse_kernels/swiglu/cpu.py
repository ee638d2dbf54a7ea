"""The fused MLP where there is no GPU: the same algorithm through torch, no Triton.

Gate and up come from one product with the packed weights, the gate is applied in place to float32
sums, and one product with `down` follows; only the output is rounded. Two measured choices:

- the weights are held in float32 (a second copy, for 16-bit models): without AVX-512 or AMX,
  16-bit products run several times slower than converting once;
- the weights are the left operand (`gate_up @ x^T`): the products' large dimension is then M of
  the GEMM, and gate and up are contiguous halves of the result.

`benchmarks/kernels_cpu_fused.py` measures it against eager in one run.
"""

import weakref

import torch

from gatefuse_kernels import traffic
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.reference import activate_
from gatefuse_kernels.workspace import scratch

_BLOCK_ROWS = 1024
"""Rows at a time: bounds the scratch memory; the products are compute-bound well before."""

_float32_weights: weakref.WeakKeyDictionary[MlpWeights, tuple[torch.Tensor, torch.Tensor]] = (
    weakref.WeakKeyDictionary()
)


class CpuFusedMlp:
    """Two products and an in-place gate on float32 sums, counted as two launches."""

    backend = "fused"

    def __init__(self, weights: MlpWeights, ledger: Ledger, max_rows: int) -> None:
        """Convert the weights to float32 once, shared by every model that holds them."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows
        held = _float32_weights.get(weights)
        if held is None:
            held = _float32_weights[weights] = (weights.gate_up.float(), weights.down.float())
        self._gate_up, self._down = held

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        return (
            "fused (CPU form, no Triton): merged gate/up product in float32, gate in place, "
            "down product in float32, one rounding"
        )

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Touch the scratch memory of the largest batch and start torch's threads."""
        like = self._weights.down
        x = torch.zeros(self._max_rows, like.shape[0], dtype=like.dtype)
        self._run(x, torch.empty_like(x))

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run the two products; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        self._run(x, out)
        for launch in traffic.fused_mlp(self._weights.shape, rows, self._weights.dtype.itemsize):
            self._ledger.count(launch)

    def _run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        for block, answer in zip(x.split(_BLOCK_ROWS), out.split(_BLOCK_ROWS), strict=True):
            self._run_block(block, answer)

    def _run_block(self, x: torch.Tensor, out: torch.Tensor) -> None:
        rows = x.shape[0]
        hidden, intermediate = self._down.shape
        products = scratch("fused_products", 2 * intermediate, rows, torch.float32)
        torch.mm(self._gate_up, x.float().t(), out=products)
        gated = activate_(products[:intermediate], self._weights.activation)
        gated.mul_(products[intermediate:])
        answer = scratch("fused_answer", hidden, rows, torch.float32)
        out.copy_(torch.mm(self._down, gated, out=answer).t())
