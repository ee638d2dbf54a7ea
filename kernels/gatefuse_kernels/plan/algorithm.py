"""What is launched for an MLP, and why."""

from dataclasses import dataclass, field
from enum import StrEnum

from gatefuse_kernels.tile import Tile


class Algorithm(StrEnum):
    """The ways to compute `down(act(gate(x)) * up(x))` on a GPU."""

    TWO_LAUNCH = "two_launch"
    """gate_up with the gate applied to float32 sums, then down: only h reaches memory."""
    FUSED_GATE_UP = "fused_gate_up"
    """gate_up as in two launches, down by the library."""
    LIBRARY = "library"
    """One library product with the merged gate and up, the elementwise gate, the library's down."""
    TEXTBOOK = "textbook"
    """The tutorial's single kernel, which computes gate and up again for each column tile."""

    @property
    def is_ours(self) -> bool:
        """Whether every launch is a kernel of this package."""
        return self not in (Algorithm.LIBRARY, Algorithm.FUSED_GATE_UP)

    @property
    def tiles_gate_up(self) -> bool:
        """Whether a plan of this algorithm has a tile for the gate and up products."""
        return self not in (Algorithm.LIBRARY, Algorithm.TEXTBOOK)

    @property
    def tiles_down(self) -> bool:
        """Whether a plan of this algorithm has a tile for the down product."""
        return self not in (Algorithm.LIBRARY, Algorithm.FUSED_GATE_UP)


class Overlap(StrEnum):
    """When down may start beside gate_up (programmatic dependent launch, capability 9 and later)."""

    NONE = "none"
    """After gate_up has ended."""
    EARLY = "early"
    """Once every program of gate_up has started: as soon as there is room."""
    LATE = "late"
    """Once every program of gate_up has done its products."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to launch.

    Attributes:
        algorithm: which kernels.
        gate_up: tile of the gate and up products, where the algorithm has one.
        down: tile of the down product (in the textbook's kernel: of its output), likewise.
        reason: why this and nothing else, for people; plans that differ in it alone are equal.
        overlap: of the two launches; only where both are ours.

    Raises:
        ValueError: a tile is missing, or has no kernel to go to.
    """

    algorithm: Algorithm
    gate_up: Tile | None
    down: Tile | None
    reason: str = field(compare=False)
    overlap: Overlap = Overlap.NONE

    def __post_init__(self) -> None:
        for name, tile, wanted in (
            ("gate_up", self.gate_up, self.algorithm.tiles_gate_up),
            ("down", self.down, self.algorithm.tiles_down),
        ):
            if wanted and tile is None:
                raise ValueError(f"a {self.algorithm} plan needs a tile for {name}")
            if tile is not None and not wanted:
                raise ValueError(f"a {self.algorithm} plan has no use for a tile for {name}")
        if self.gate_up is not None and self.gate_up.splits != 1:
            raise ValueError("gate_up cannot be split: the gate needs whole sums")
        if self.down is not None and self.down.share_tail:
            raise ValueError("down shares out no tiles: gate_up alone does")
        if self.down is not None and self.down.specialized:
            raise ValueError("down has no specialized kernel: gate_up alone has")
        if self.overlap is not Overlap.NONE and self.algorithm is not Algorithm.TWO_LAUNCH:
            raise ValueError(f"a {self.algorithm} plan has nothing to overlap")
        if not self.reason:
            raise ValueError("a plan says why")

    @property
    def tiles(self) -> tuple[Tile, Tile]:
        """The gate_up and down tiles of an algorithm that has both.

        Raises:
            ValueError: it has not.
        """
        if self.gate_up is None or self.down is None:
            raise ValueError(f"a {self.algorithm} plan has no pair of tiles")
        return self.gate_up, self.down
