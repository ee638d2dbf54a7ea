"""What a search asks of whatever measures: times, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gatefuse_kernels.plan import Plan, Tile

LOOKED_AT_CLOSELY = 8
"""Tiles that a first look leaves to a closer one: so many can be told apart in one call."""


class Launch(StrEnum):
    """The launches that have tiles."""

    GATE_UP = "gate_up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Timed:
    """A tile and the microseconds of its launch."""

    tile: Tile
    us: float


class Stopwatch(Protocol):
    """Measures one MLP on one device."""

    def tiles(self, launch: Launch, rows: int, tiles: Sequence[Tile]) -> list[Timed]:
        """Those of the tiles that compile, do not spill and answer rightly; the fastest first."""

    def plans(self, rows: int, plans: Sequence[Plan]) -> list[float]:
        """Microseconds of a whole MLP under each plan, taking turns in one run.

        Raises:
            WrongAnswerError: a plan's answer is not within the gate.
        """

    def same_bits(self, launch: Launch, tiles: Sequence[Tile]) -> bool:
        """Whether all of these tiles, which can be used, give one answer, bit by bit."""


class NoMemoryError(RuntimeError):
    """The device has too little memory; the text says for which shape."""


class WrongAnswerError(RuntimeError):
    """A plan that was timed does not answer rightly."""
