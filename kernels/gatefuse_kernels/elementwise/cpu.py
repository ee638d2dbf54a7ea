"""The fused form without a GPU and without a compiler: torch's ops on blocks that stay in the cache.

Also where compiled C++ would be less accurate than torch's own ops.

A block's inputs are read from memory once and its outputs written once; in between every op runs on a
block-sized intermediate, in float32. A compiled loop is far faster (`benchmarks/elementwise_cpu.py` has
both, and numexpr, in one run), so this is the form of last resort.
"""

from collections.abc import Iterator, Sequence

import torch

from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.torch_ops import evaluate, store

_BLOCK_ELEMENTS = 1 << 16
"""256 KiB of float32 in each intermediate: a few of them fit a core's L2 and a share of L3."""


class BlockedElementwise:
    """One pass over memory, block by block, counted as one launch."""

    backend = "fused"

    def __init__(self, setting: Setting) -> None:
        """Nothing to prepare."""
        self._setting = setting
        self._traffic = setting.traffic_of("fused")
        self._names = (*setting.program.inputs, *setting.program.vectors)

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        return (
            f"fused (CPU form, nothing compiled): {self._setting.program.text} by torch ops on "
            f"blocks of {_BLOCK_ELEMENTS} elements, in float32 with one rounding"
        )

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Nothing to compile."""

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Compute block by block; see `Elementwise`."""
        setting = self._setting
        rows, columns = setting.check(inputs, outputs)
        if rows == 0 or columns == 0:
            return
        constants = setting.constants
        for part in _blocks(rows, columns, flat=not constants):
            blocks = [_part(each, part, flat=not constants) for each in inputs]
            tensors = dict(zip(self._names, (*blocks, *constants), strict=True))
            answers = [_part(each, part, flat=not constants) for each in outputs]
            store(evaluate(setting.program, tensors, in_float32=True), answers)
        (launch,) = self._traffic(rows, columns)
        setting.ledger.count(launch)


def _blocks(rows: int, columns: int, *, flat: bool) -> Iterator[slice]:
    """Parts of the elements, or of the rows where columns matter."""
    whole, step = (rows * columns, _BLOCK_ELEMENTS) if flat else (rows, _BLOCK_ELEMENTS // columns)
    for start in range(0, whole, max(1, step)):
        yield slice(start, start + max(1, step))


def _part(tensor: torch.Tensor, part: slice, *, flat: bool) -> torch.Tensor:
    return tensor.view(-1)[part] if flat else tensor[part]
