"""Counts launches and modelled bytes where they happen: run directly, captured, or replayed.

A launcher calls `count` beside each kernel it launches. While a CUDA graph is captured nothing
runs, so the counts go into a recipe; each replay adds the recipe once. No lock: one engine thread
owns a ledger.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gatefuse_kernels.traffic import KernelTraffic

Mode = Literal["eager", "graph"]


class Entry(NamedTuple):
    """Totals of one kernel in one mode since the last drain."""

    kernel: str
    mode: Mode
    launches: int
    read_bytes: int
    written_bytes: int
    flops: int


@dataclass(slots=True)
class _Sum:
    launches: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    flops: int = 0

    def add(self, launches: int, read_bytes: int, written_bytes: int, flops: int) -> None:
        self.launches += launches
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes
        self.flops += flops


@dataclass(slots=True)
class Recipe:
    """The launches of one captured graph, by kernel."""

    _sums: dict[str, _Sum] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """Kernel launches of one replay."""
        return sum(total.launches for total in self._sums.values())

    @property
    def bytes_moved(self) -> int:
        """Modelled bytes, read and written, of one replay."""
        return sum(total.read_bytes + total.written_bytes for total in self._sums.values())

    @property
    def kernels(self) -> dict[str, int]:
        """Launches of one replay by kernel name."""
        return {kernel: total.launches for kernel, total in self._sums.items()}


class Ledger:
    """Sums launches, bytes and FLOPs per kernel and mode until drained. Not thread-safe."""

    def __init__(self) -> None:
        """Start with empty totals."""
        self._totals: dict[tuple[str, Mode], _Sum] = {}
        self._recipe: Recipe | None = None

    def count(self, traffic: KernelTraffic) -> None:
        """Add one launch: to the recipe while recording, else to the totals as mode "eager"."""
        if self._recipe is not None:
            total = self._recipe._sums.setdefault(traffic.kernel, _Sum())
        else:
            total = self._totals.setdefault((traffic.kernel, "eager"), _Sum())
        total.add(1, traffic.read_bytes, traffic.written_bytes, traffic.flops)

    @contextmanager
    def recording(self) -> Iterator[Recipe]:
        """Collect counts into a recipe instead of the totals: captured is not executed.

        Raises:
            RuntimeError: a recording is already open.
        """
        if self._recipe is not None:
            raise RuntimeError("the ledger is already recording a graph")
        self._recipe = Recipe()
        try:
            yield self._recipe
        finally:
            self._recipe = None

    def replay(self, recipe: Recipe) -> None:
        """Add every launch of `recipe` once, as mode "graph"."""
        for kernel, part in recipe._sums.items():
            total = self._totals.setdefault((kernel, "graph"), _Sum())
            total.add(part.launches, part.read_bytes, part.written_bytes, part.flops)

    def drain(self) -> list[Entry]:
        """Totals since the last drain, in order of first appearance; then start from zero."""
        entries = [
            Entry(kernel, mode, s.launches, s.read_bytes, s.written_bytes, s.flops)
            for (kernel, mode), s in self._totals.items()
        ]
        self._totals.clear()
        return entries
