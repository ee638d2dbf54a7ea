"""What a run is asked to do. Pure: no torch here."""

from dataclasses import dataclass

from gatefuse_kernels.bench import cases
from gatefuse_kernels.shapes import DType, MlpShape

PEERS = ("eager", "compiled", "max_autotune", "merged", "flash_swiglu", "liger")
"""In the order of the table."""

AUTOTUNE_ROWS = (1, 16, 128, 512)
"""Where `max_autotune` runs unless told otherwise: at each point it tunes dozens of products."""


@dataclass(frozen=True, slots=True)
class Options:
    """One run.

    Attributes:
        shapes: which MLPs.
        rows: which row counts.
        dtype: element type of weights and rows.
        rounds: the most timed rounds of a point; fewer where a round is long.
        peers: which of `PEERS`.
        autotune_rows: the row counts at which `max_autotune` runs.
        elements: size of the elementwise gate's operands; 0 leaves it out.
        deterministic: also measure and check the batch-invariant mode.
        compositions: random batches of that check.
        jobs: processes that compile ahead; 0 compiles as it goes.
        budget_s: no new point is begun after so long; 0 for no limit.
    """

    shapes: tuple[MlpShape, ...] = cases.SHAPES
    rows: tuple[int, ...] = cases.ROWS
    dtype: DType = DType.BF16
    rounds: int = 200
    peers: tuple[str, ...] = PEERS
    autotune_rows: tuple[int, ...] = AUTOTUNE_ROWS
    elements: int = 100_000_000
    deterministic: bool = False
    compositions: int = 1000
    jobs: int = 0
    budget_s: float = 0

    @property
    def command(self) -> str:
        """The command that repeats the run: every choice, but no path and nothing of this machine."""
        words = [
            "gatefuse bench kernels",
            f"--shapes {_joined(self.shapes)}",
            f"--rows {_joined(self.rows)}",
            f"--dtype {self.dtype}",
            f"--rounds {self.rounds}",
            f"--peers {_joined(self.peers) or 'none'}",
            f"--autotune-rows {_joined(self.autotune_rows)}"
            if "max_autotune" in self.peers
            else "",
            f"--elements {self.elements}",
            f"--deterministic --compositions {self.compositions}" if self.deterministic else "",
        ]
        return " ".join(word for word in words if word)


def _joined(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))
