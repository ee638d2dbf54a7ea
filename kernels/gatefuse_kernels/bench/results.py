"""What a run found, as values: from here on nothing is measured. Pure: no torch here."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gatefuse_kernels.bench import cases
from gatefuse_kernels.bench.cases import Verdict
from gatefuse_kernels.shapes import MlpShape


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds: the median of many rounds and where their middle four fifths lie."""

    median_us: float
    p10_us: float
    p90_us: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One form that answered rightly.

    Attributes:
        time: per call, as a CUDA-graph replay with cold weights.
        launches: kernels of one call.
        error: relative Frobenius error against float64.
    """

    time: Spread
    launches: int
    error: float


class State(StrEnum):
    """Why a peer has no time, or that it has one."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"
    NOT_INSTALLED = "not installed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What came of one peer at one point.

    Attributes:
        state: whether it counts.
        reason: in words, where the state alone does not say; no paths.
        measured: its figures, where there are any.
    """

    state: State
    reason: str = ""
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """How fast one launch reads a shape's weights, and how fast they are copied.

    Attributes:
        shape: whose weights.
        read_bytes: bytes of one copy of the weights.
        readers_us: every reader's median.
        reader: the fastest one's name.
        copy_us: the fastest copy's median; it reads and writes `read_bytes` each.
    """

    shape: MlpShape
    read_bytes: int
    readers_us: Mapping[str, float]
    reader: str
    copy_us: float

    @property
    def read_tb_per_s(self) -> float:
        """Terabytes read per second."""
        return self.read_bytes / self.readers_us[self.reader] / 1e6

    @property
    def copy_tb_per_s(self) -> float:
        """Terabytes read and written per second."""
        return 2 * self.read_bytes / self.copy_us / 1e6


@dataclass(frozen=True, slots=True)
class Point:
    """Everything about one shape at one row count.

    Attributes:
        shape: the MLP's widths.
        rows: M.
        floor: the best reader, in the same rounds as the rest.
        ours: the default mode.
        kernels: our launches by name.
        is_repeatable: the same call, again and over equal weights elsewhere, gave the same bits.
        host: host time of one un-graphed call of ours.
        deterministic: the batch-invariant mode, if it was asked for.
        peers: by name, in the order of the table.
    """

    shape: MlpShape
    rows: int
    floor: Spread
    ours: Measured
    kernels: Mapping[str, int]
    is_repeatable: bool
    host: Spread
    deterministic: Measured | None
    peers: Mapping[str, PeerResult]

    @property
    def peers_us(self) -> dict[str, float]:
        """Medians of the peers that count."""
        return {
            name: peer.measured.time.median_us
            for name, peer in self.peers.items()
            if peer.state is State.OK and peer.measured is not None
        }

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every limit that applies here."""
        ours = self.ours.time.median_us
        found = [
            cases.judge_floor(self.shape, self.rows, ours, self.floor.median_us),
            cases.judge_peers(self.rows, ours, self.peers_us),
            cases.judge_host(self.host.median_us),
        ]
        if self.deterministic is not None:
            deterministic = self.deterministic.time.median_us
            found.append(cases.judge_deterministic(self.rows, deterministic, ours))
        return tuple(verdict for verdict in found if verdict is not None)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The elementwise gate beside a copy that moves as many bytes.

    Attributes:
        dtype: of the elements.
        elements: of one operand.
        gate: reads two operands, writes one.
        copy: reads and writes half as many bytes each.
        error: relative Frobenius error against float64.
    """

    dtype: str
    elements: int
    gate: Spread
    copy: Spread
    error: float

    @property
    def verdict(self) -> Verdict:
        """Both move the same bytes, so bandwidths compare as times do."""
        return cases.judge_copy(1 / self.gate.median_us, 1 / self.copy.median_us)


@dataclass(frozen=True, slots=True)
class Invariance:
    """Whether a row's bits depend on its company, in the deterministic mode.

    Attributes:
        shape: the MLP's widths.
        compositions: random batches computed.
        largest_rows: rows of the largest of them.
        rows: rows compared.
        different_rows: rows whose bits differ from those of the row computed alone.
    """

    shape: MlpShape
    compositions: int
    largest_rows: int
    rows: int
    different_rows: int


@dataclass(frozen=True, slots=True)
class Report:
    """A run: what it was, what it found, and what it had no time for."""

    command: str
    facts: Mapping[str, str]
    floors: tuple[Floor, ...]
    points: tuple[Point, ...]
    gates: tuple[GateResult, ...]
    invariance: tuple[Invariance, ...]
    not_measured: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What no speed excuses; empty if there is nothing."""
        unrepeatable = [
            f"{point.shape}, {point.rows} rows: the same call gave different bits"
            for point in self.points
            if not point.is_repeatable
        ]
        variant = [
            f"{found.shape}: {found.different_rows} of {found.rows} rows depend on their batch"
            for found in self.invariance
            if found.different_rows
        ]
        return (*unrepeatable, *variant)
