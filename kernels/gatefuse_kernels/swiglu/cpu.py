"""The fused MLP where there is no GPU: the same algorithm through torch, no Triton.

Gate and up come from one product with the packed weights, the gate is applied in place to float32
sums, and one product with `down` follows; only the output is rounded. Two measured choices
(`benchmarks/kernels_cpu_fused.py`, both forms in one run; AVX2, 2 cores):

- The weights are held in float32 (a second copy, for 16-bit models). Without AVX-512 or AMX a
  16-bit product of 16 rows or more takes 2 to 7 times as long as a float32 one.
- From a few rows on the weights are the left operand (`gate_up @ x^T`): the GEMM's M is then their
  large dimension, and gate and up are contiguous halves of the result.

The price: one row of a 16-bit model whose weights outgrow the cache takes about twice eager's time,
for twice the bytes are read. Products of 16-bit weights would avoid that, but round gate and up,
and the answer would be no better than eager's.

The deterministic form is `cpu_blocks`.
"""

import weakref
from functools import cached_property

import torch

from gatefuse_kernels import traffic
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.reference import activate_
from gatefuse_kernels.swiglu.cpu_blocks import FixedBlocks
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.workspace import scratch

_BLOCK_ROWS = 1024
"""Rows at a time: bounds the scratch memory; the products are compute-bound well before."""

_FEW_ROWS = 4
"""Below this the weights as right operand are as fast or faster."""

_float32_weights: weakref.WeakKeyDictionary[MlpWeights, tuple[torch.Tensor, torch.Tensor]] = (
    weakref.WeakKeyDictionary()
)


class CpuFusedMlp:
    """Two products and an in-place gate on float32 sums, counted as two launches."""

    backend = "fused"

    graph_buckets = ()

    def __init__(
        self, weights: MlpWeights, ledger: Ledger, max_rows: int, *, deterministic: bool = False
    ) -> None:
        """Convert the weights to float32 once, shared by every model that holds them."""
        self._weights = weights
        self._ledger = ledger
        self._max_rows = max_rows
        self._deterministic = deterministic
        held = _float32_weights.get(weights)
        if held is None:
            held = _float32_weights[weights] = (weights.gate_up.float(), weights.down.float())
        self._gate_up, self._down = held

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        form = (
            "fused (CPU form, no Triton): merged gate/up product in float32, gate in place, "
            "down product in float32, one rounding"
        )
        if not self._deterministic:
            return form
        return f"{form}; deterministic: always in blocks of {self._block_rows} rows"

    def padded_rows(self, rows: int) -> int:
        """Whole blocks where blocks are fixed, else no padding."""
        if not self._deterministic:
            return rows
        return -(-rows // self._block_rows) * self._block_rows

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
        block_rows = self._block_rows if self._deterministic else rows
        launches = traffic.fused_mlp(self._weights.shape, block_rows, self._weights.dtype.itemsize)
        for launch in launches * -(-rows // block_rows):
            self._ledger.count(launch)

    @property
    def _fixed(self) -> FixedBlocks:
        return FixedBlocks(self._gate_up, self._down, self._weights.activation)

    @cached_property
    def _block_rows(self) -> int:
        return self._fixed.choose_block_rows()

    def _run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._deterministic:
            self._fixed.run(x, out, self._block_rows)
            return
        if x.shape[0] < _FEW_ROWS:
            self._run_few(x, out)
            return
        for block, answer in zip(x.split(_BLOCK_ROWS), out.split(_BLOCK_ROWS), strict=True):
            self._run_block(block, answer)

    def _run_few(self, x: torch.Tensor, out: torch.Tensor) -> None:
        rows = x.shape[0]
        hidden, intermediate = self._down.shape
        products = scratch("fused_products", rows, 2 * intermediate, torch.float32)
        torch.mm(x.float(), self._gate_up.t(), out=products)
        gated = activate_(products[:, :intermediate], self._weights.activation)
        gated.mul_(products[:, intermediate:])
        answer = scratch("fused_answer", rows, hidden, torch.float32)
        out.copy_(torch.mm(gated, self._down.t(), out=answer))

    def _run_block(self, x: torch.Tensor, out: torch.Tensor) -> None:
        rows = x.shape[0]
        hidden, intermediate = self._down.shape
        products = scratch("fused_products", 2 * intermediate, rows, torch.float32)
        torch.mm(self._gate_up, x.float().t(), out=products)
        gated = activate_(products[:intermediate], self._weights.activation)
        gated.mul_(products[intermediate:])
        answer = scratch("fused_answer", hidden, rows, torch.float32)
        out.copy_(torch.mm(self._down, gated, out=answer).t())
