"""Counted by us against counted by the GPU. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gatefuse_kernels.audit.cases import Call
from gatefuse_kernels.audit.counters import Counted


@dataclass(frozen=True, slots=True)
class LaunchCount:
    """The launches of one served model.

    Attributes:
        model: its name.
        requests: sent to it.
        buckets: row counts whose graphs were replayed.
        exported: by the kernel label of our metric.
        profiled: by the name of the kernel on the device.
    """

    model: str
    requests: int
    buckets: tuple[int, ...] = ()
    exported: dict[str, int] = field(default_factory=dict)
    profiled: dict[str, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether as many were exported as ran, and any at all."""
        return 0 < sum(self.exported.values()) == sum(self.profiled.values())

    @property
    def ratio(self) -> float:
        """Measured by counted; 0 if nothing was counted."""
        exported = sum(self.exported.values())
        return sum(self.profiled.values()) / exported if exported else 0.0


@dataclass(frozen=True, slots=True)
class KernelBytes:
    """One launch: what the model says it moves, and what it moved.

    Attributes:
        model: that was called.
        backend: of the call.
        rows: of the call.
        kernel: by our name.
        read_bytes: modelled.
        written_bytes: modelled.
        measured: by the GPU's counters.
    """

    model: str
    backend: str
    rows: int
    kernel: str
    read_bytes: int
    written_bytes: int
    measured: Counted

    @property
    def read_ratio(self) -> float | None:
        """DRAM's bytes by modelled ones; None where nothing is modelled."""
        return _ratio(self.measured.dram_read_bytes, self.read_bytes)

    @property
    def write_ratio(self) -> float | None:
        """Likewise of what is written."""
        return _ratio(self.measured.dram_written_bytes, self.written_bytes)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A call whose launches are not those that were counted."""

    model: str
    backend: str
    rows: int
    counted: tuple[str, ...]
    measured: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.rows} rows: {len(self.counted)} launches were counted "
            f"({', '.join(self.counted)}) and {len(self.measured)} ran ({', '.join(self.measured)})"
        )


def compare(
    calls: Sequence[Call], counted: Sequence[Sequence[Counted]]
) -> tuple[list[KernelBytes], list[Mismatch]]:
    """Each call's launches with what the counters saw of them, in order.

    Raises:
        ValueError: the counters saw another number of calls.
    """
    if len(calls) != len(counted):
        raise ValueError(f"{len(calls)} calls were made and {len(counted)} seen by the counters")
    compared: list[KernelBytes] = []
    wrong: list[Mismatch] = []
    for call, seen in zip(calls, counted, strict=True):
        if len(call.counted) != len(seen):
            ours = tuple(launch.kernel for launch in call.counted)
            theirs = tuple(each.kernel for each in seen)
            wrong.append(Mismatch(call.model, call.backend, call.rows, ours, theirs))
            continue
        compared.extend(
            KernelBytes(
                call.model,
                call.backend,
                call.rows,
                launch.kernel,
                launch.read_bytes,
                launch.written_bytes,
                each,
            )
            for launch, each in zip(call.counted, seen, strict=True)
        )
    return compared, wrong


def dram_ratios(compared: Sequence[KernelBytes], l2_bytes: int) -> dict[str, float]:
    """Measured by modelled bytes of all launches together, by direction.

    Only where a launch moves more than L2 holds in that direction: of less, what it wrote is still
    there when it ends, and what is measured is what another kernel had left.
    The textbook's kernel is left out: what it reads again and finds in L2 is modelled, too.
    """
    honest = [each for each in compared if each.backend != "textbook"]
    reads = [
        (each.measured.dram_read_bytes, each.read_bytes)
        for each in honest
        if each.read_bytes > l2_bytes
    ]
    writes = [
        (each.measured.dram_written_bytes, each.written_bytes)
        for each in honest
        if each.written_bytes > l2_bytes
    ]
    sums = {
        "dram_read": tuple(map(sum, zip(*reads, strict=True))),
        "dram_write": tuple(map(sum, zip(*writes, strict=True))),
    }
    return {check: pair[0] / pair[1] for check, pair in sums.items() if pair}


def launch_ratio(launches: Sequence[LaunchCount]) -> float:
    """The ratio of the model that is farthest from one: errors of two models must not cancel out."""
    return max((each.ratio for each in launches), key=lambda ratio: abs(ratio - 1), default=0.0)


def _ratio(measured: int, modelled: int) -> float | None:
    return measured / modelled if modelled else None
