"""What a run over chains is asked to do. Pure: no torch here."""

import shlex
from dataclasses import dataclass

from gatefuse_kernels.bench.chains.cases import CHAINS, OWN, Chain
from gatefuse_kernels.shapes import DType


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """One run.

    Attributes:
        chains: which, at most one of them not of `CHAINS`.
        dtypes: of the tensors; each chain is measured in each.
        elements: of each tensor, rounded down to whole rows.
        rounds: the most timed rounds of a chain; fewer where a round is long.
        budget_s: no new chain is begun after so long; 0 for no limit.
    """

    chains: tuple[Chain, ...] = CHAINS
    dtypes: tuple[DType, ...] = (DType.BF16, DType.FP32)
    elements: int = 100_000_000
    rounds: int = 100
    budget_s: float = 0

    @property
    def command(self) -> str:
        """The command that repeats the run: every choice, but no path and nothing of this machine."""
        named = [chain.name for chain in self.chains if chain.name != OWN]
        words = ["gatefuse", "bench", "elementwise"]
        words += ["--chains", ",".join(named) or "none"]
        for chain in self.chains:
            if chain.name == OWN:
                words += ["--expression", chain.text]
                words += ["--vectors", ",".join(chain.vectors)] if chain.vectors else []
        words += ["--dtype", ",".join(dtype.value for dtype in self.dtypes)]
        words += ["--elements", str(self.elements), "--rounds", str(self.rounds)]
        return shlex.join(words)
