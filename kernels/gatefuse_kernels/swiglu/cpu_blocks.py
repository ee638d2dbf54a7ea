"""The batch-invariant CPU form: every product has one fixed shape, whatever was asked for.

A library picks its kernel, and how it divides the work among threads, by the shape of a product:
with another M a row's sums may be added in another order. So rows are computed in blocks of 16, the
last one padded with zeros: the same two products on the same memory layout every time. That each
position of a block is treated alike is not taken on trust: `choose_block_rows` computes one row in
all of them and compares bits, and where a library fails that, a block is one row.

The number of threads must stay the same, too; a worker sets it once. Another machine, torch or
number of threads may give other bits.
"""

from dataclasses import dataclass

import torch

from gatefuse_kernels.reference import activate_
from gatefuse_kernels.shapes import Activation
from gatefuse_kernels.workspace import scratch

_BLOCK_ROWS = 16
"""A power of two: where a vectorised loop leaves the end of a `[.., 16]` matrix over, that end is
of whole rows, the same for each position. A block takes as long for one row as for 16."""

_GATE_ELEMENTS = 8192
"""Elements activated at a time. torch computes the last few of each thread's share one by one, with
another exp than in the vectors before; a call as small as this is not shared among threads."""


@dataclass(frozen=True, eq=False)
class FixedBlocks:
    """One MLP in float32, for blocks of a fixed number of rows.

    Attributes:
        gate_up: `[2I, H]` float32, contiguous.
        down: `[H, I]` float32, contiguous.
        activation: applied to the gate.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    activation: Activation

    def choose_block_rows(self) -> int:
        """16 where a row has the same bits in every position of such a block, else 1."""
        hidden = self.down.shape[0]
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, hidden, generator=generator).expand(_BLOCK_ROWS, hidden)
        out = torch.empty(_BLOCK_ROWS, hidden)
        self.run(x, out, _BLOCK_ROWS)
        bits = out.view(torch.int32)
        return _BLOCK_ROWS if torch.equal(bits, bits[:1].expand_as(bits)) else 1

    def run(self, x: torch.Tensor, out: torch.Tensor, block_rows: int) -> None:
        """Compute out `[M, H]` from x `[M, H]`, of any dtype, M >= 1, in blocks of `block_rows`."""
        for block, answer in zip(x.split(block_rows), out.split(block_rows), strict=True):
            self._run_block(block, answer, block_rows)

    def _run_block(self, x: torch.Tensor, out: torch.Tensor, block_rows: int) -> None:
        hidden, intermediate = self.down.shape
        # Copied even where it is float32 already: an operand's alignment may decide, too.
        padded = scratch("blocks_x", block_rows, hidden, torch.float32)
        padded[: x.shape[0]].copy_(x)
        padded[x.shape[0] :].zero_()
        products = scratch("blocks_products", 2 * intermediate, block_rows, torch.float32)
        torch.mm(self.gate_up, padded.t(), out=products)
        gate, up = products[:intermediate], products[intermediate:]
        for part in gate.view(-1).split(_GATE_ELEMENTS):
            activate_(part, self.activation)
        gate.mul_(up)
        answer = scratch("blocks_answer", hidden, block_rows, torch.float32)
        torch.mm(self.down, gate, out=answer)
        out.copy_(answer[:, : x.shape[0]].t())
