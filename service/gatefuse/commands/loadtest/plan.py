"""What a load test measures: one cell for each model, number of rows and load. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

ARRIVALS = ("poisson", "fixed")


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent.

    Closed loop: ``concurrency`` clients send one request after the other. Open loop: ``rate``
    requests a second are sent at their time whether earlier ones have been answered or not.
    """

    concurrency: int = 0
    rate: float = 0.0
    arrivals: str = "poisson"

    def __post_init__(self) -> None:
        """Checks that it is one of the two."""
        if (self.concurrency > 0) == (self.rate > 0):
            raise ValueError("a load is either a concurrency or a rate, above zero")
        if self.arrivals not in ARRIVALS:
            raise ValueError(f"arrivals {self.arrivals!r} is not one of {', '.join(ARRIVALS)}")

    @property
    def is_open(self) -> bool:
        """Whether requests are sent by the clock."""
        return self.rate > 0

    @property
    def label(self) -> str:
        """Short text for a table."""
        return f"{self.rate:g}/s" if self.is_open else str(self.concurrency)

    def share(self, part: int, parts: int) -> Load | None:
        """Returns the load of one process of several; None if nothing is left for it."""
        if self.is_open:
            return replace(self, rate=self.rate / parts)
        concurrency = self.concurrency // parts + (part < self.concurrency % parts)
        return replace(self, concurrency=concurrency) if concurrency else None


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    model: str
    rows: int
    load: Load


def plan_cells(
    models: Sequence[str], rows: Sequence[int], loads: Sequence[Load]
) -> tuple[Cell, ...]:
    """Returns the cells in order: models take turns under the same load, so that they meet the same machine."""
    return tuple(Cell(model, count, load) for count in rows for load in loads for model in models)
