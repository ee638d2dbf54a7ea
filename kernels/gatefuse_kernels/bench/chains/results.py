"""What a run over chains found, as values: from here on nothing is measured. Pure: no torch here."""

from collections.abc import Mapping
from dataclasses import dataclass

from gatefuse_kernels.bench.cases import Verdict, fastest
from gatefuse_kernels.bench.chains import cases
from gatefuse_kernels.bench.chains.cases import Chain
from gatefuse_kernels.bench.results import Measured, PeerResult, Spread, State
from gatefuse_kernels.shapes import DType

FUSED = "fused"
COMPILED = "torch.compile"
EAGER = "eager"


@dataclass(frozen=True, slots=True)
class FormTraffic:
    """What one form must move, by the formulas that the ledger counts with.

    Attributes:
        passes: over whole tensors.
        bytes_moved: read and written.
    """

    passes: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class ChainResult:
    """Everything about one chain in one dtype.

    Attributes:
        chain: what was computed.
        dtype: of every tensor.
        rows: M.
        ops: steps of the program.
        traffic: of the fused form and of eager.
        ours: the fused form.
        peers: `COMPILED` and `EAGER`.
        copies: ways to copy, each moving as many bytes as ours.
        shorter: the fused form of the chain it is held to, on the same tensors.
    """

    chain: Chain
    dtype: DType
    rows: int
    ops: int
    traffic: Mapping[str, FormTraffic]
    ours: Measured
    peers: Mapping[str, PeerResult]
    copies: Mapping[str, Spread]
    shorter: Spread | None

    @property
    def title(self) -> str:
        """Name and dtype."""
        return f"{self.chain.name} {self.dtype}"

    @property
    def copy_us(self) -> float:
        """The fastest copy's median."""
        return min(found.median_us for found in self.copies.values())

    @property
    def copy_share(self) -> float:
        """Our bandwidth by the copy's: both move the same bytes."""
        return self.copy_us / self.ours.time.median_us

    @property
    def tb_per_s(self) -> float:
        """Modelled terabytes that ours reads and writes per second."""
        return self.traffic[FUSED].bytes_moved / self.ours.time.median_us / 1e6

    @property
    def peers_us(self) -> dict[str, float]:
        """Medians of the peers that count."""
        return {
            name: peer.measured.time.median_us
            for name, peer in self.peers.items()
            if peer.state is State.OK and peer.measured is not None
        }

    @property
    def fastest_peer(self) -> str | None:
        """Its name; None if none ran."""
        return fastest(self.peers_us)

    @property
    def launches(self) -> dict[str, int]:
        """Of one call of each form that ran, as they were counted when it was captured."""
        ran = {
            name: peer.measured.launches
            for name, peer in self.peers.items()
            if peer.measured is not None
        }
        return {FUSED: self.ours.launches} | ran

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every limit that applies here."""
        ours, peers = self.ours.time.median_us, self.peers_us
        found = [
            cases.judge_copy_of(self.chain, self.dtype, ours, self.copy_us),
            cases.judge_compiled(ours, peers[COMPILED]) if COMPILED in peers else None,
            cases.judge_eager(self.chain, ours, peers[EAGER]) if EAGER in peers else None,
            cases.judge_length(ours, self.shorter.median_us) if self.shorter else None,
            cases.judge_launches(self.ours.launches),
        ]
        return tuple(verdict for verdict in found if verdict is not None)


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """Launches of one call, counted twice.

    Attributes:
        title: of the chain's result.
        form: fused, eager or torch.compile.
        counted: by the ledger; of torch.compile, which has none, from its captured graph.
        profiled: kernels that torch.profiler saw running.
    """

    title: str
    form: str
    counted: int
    profiled: int


@dataclass(frozen=True, slots=True)
class ChainReport:
    """A run: what it was, what it found, and what it had no time for."""

    command: str
    facts: Mapping[str, str]
    results: tuple[ChainResult, ...]
    launches: tuple[LaunchCheck, ...]
    not_measured: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What no speed excuses; empty if there is nothing."""
        return tuple(
            f"{each.title}, {each.form}: {each.counted} launches counted, {each.profiled} profiled"
            for each in self.launches
            if each.counted != each.profiled
        )
