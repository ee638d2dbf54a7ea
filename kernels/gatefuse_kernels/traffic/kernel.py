"""One launch as a value: which tensors it reads and writes, how often, and what it computes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor's way from or to memory in one launch.

    Attributes:
        tensor: its name.
        nbytes: moved in all, `trips` times the tensor's own size.
        trips: whole passes over the tensor; 0 for a per-column constant, which next to the rows is
            nothing.
    """

    tensor: str
    nbytes: int
    trips: int = 1


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """One launch: its name, what it must move, and its floating-point operations.

    Attributes:
        kernel: its name in the ledger and the metrics.
        reads: a tensor each.
        writes: likewise.
        flops: floating-point operations.
        read_bytes: of all reads; kept, for a ledger adds it at each launch.
        written_bytes: likewise.
    """

    kernel: str
    reads: tuple[Transfer, ...]
    writes: tuple[Transfer, ...]
    flops: int
    read_bytes: int = field(init=False)
    written_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "read_bytes", sum(each.nbytes for each in self.reads))
        object.__setattr__(self, "written_bytes", sum(each.nbytes for each in self.writes))

    @property
    def bytes_moved(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes

    @property
    def passes(self) -> int:
        """Trips of whole tensors through memory, each read and each write counted as one."""
        return sum(each.trips for each in (*self.reads, *self.writes))

    @property
    def intensity(self) -> float:
        """FLOPs per byte; 0 for a launch that moves nothing."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


def passes(launches: Sequence[KernelTraffic]) -> int:
    """Trips of whole tensors through memory, of all launches together."""
    return sum(launch.passes for launch in launches)


def peak_intermediate_bytes(
    launches: Sequence[KernelTraffic], outputs: Collection[str] = ("out",)
) -> int:
    """The most bytes of memory that what is neither input nor output takes at once.

    A tensor lives from the launch that first writes it to the last one that reads it, both included; one
    that is written again under its name is updated in place.

    Args:
        launches: in order.
        outputs: tensors that the caller wants, and so no intermediates.
    """
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, launch in enumerate(launches):
        for each in launch.writes:
            if each.tensor not in outputs:
                sizes[each.tensor] = each.nbytes // max(1, each.trips)
                first.setdefault(each.tensor, number)
        for each in (*launch.reads, *launch.writes):
            last[each.tensor] = number
    return max(
        (
            sum(size for name, size in sizes.items() if first[name] <= number <= last[name])
            for number in range(len(launches))
        ),
        default=0,
    )


def helper_launch(traffic: KernelTraffic) -> KernelTraffic:
    """A library's extra launch for an op (a split-K reduction): counted, no modelled bytes."""
    return replace(traffic, kernel=f"{traffic.kernel}_helper", reads=(), writes=(), flops=0)
