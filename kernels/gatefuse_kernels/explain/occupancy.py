"""How many programs of a compiled kernel a multiprocessor holds at once, and what limits them.

Limits per compute capability are those of the CUDA C++ Programming Guide, table "Technical
Specifications per Compute Capability"; the granularities those of NVIDIA's occupancy calculator:
registers are given to warps in units of 256, each quarter of a multiprocessor has its own 16384 of
them, and shared memory comes in units of 128 bytes with 1 KiB a program that the system takes.
"""

from dataclasses import dataclass

_LANES_PER_WARP = 32
_QUARTERS = 4
_REGISTERS_PER_QUARTER = 16384
_REGISTER_UNIT = 256
_SHARED_UNIT = 128
_SYSTEM_SHARED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Limits:
    """Of one multiprocessor."""

    warps: int
    programs: int
    shared_bytes: int


_LIMITS: tuple[tuple[tuple[int, int], _Limits], ...] = (
    ((8, 0), _Limits(64, 32, 164 << 10)),
    ((8, 6), _Limits(48, 16, 100 << 10)),
    ((8, 7), _Limits(48, 16, 164 << 10)),
    ((8, 9), _Limits(48, 24, 100 << 10)),
    ((9, 0), _Limits(64, 32, 228 << 10)),
    ((10, 0), _Limits(64, 32, 228 << 10)),
    ((12, 0), _Limits(48, 24, 100 << 10)),
)
"""By the first capability it covers, ascending."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Programs that fit one multiprocessor at once.

    Attributes:
        by_registers: as many as its registers hold.
        by_shared: as many as its shared memory holds.
        by_threads: as many as its warps hold.
        by_slots: as many as it ever runs.
        warps: of one program.
        most_warps: of the multiprocessor.
    """

    by_registers: int
    by_shared: int
    by_threads: int
    by_slots: int
    warps: int
    most_warps: int

    @property
    def programs(self) -> int:
        """Programs at once; 0 if not even one fits."""
        return min(self.by_registers, self.by_shared, self.by_threads, self.by_slots)

    @property
    def limited_by(self) -> str:
        """What there is too little of."""
        limits = {
            "registers": self.by_registers,
            "shared memory": self.by_shared,
            "threads": self.by_threads,
            "program slots": self.by_slots,
        }
        return min(limits, key=lambda name: limits[name])

    @property
    def share(self) -> float:
        """Of the warps that a multiprocessor can hold."""
        return self.programs * self.warps / self.most_warps


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of one kernel for one architecture.

    Attributes:
        kernel: its name.
        registers: per thread.
        stack_bytes: per thread; registers that did not fit spill there.
        shared_bytes: per program.
        warps: per program.
        occupancy: what a multiprocessor holds of it.
    """

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    warps: int
    occupancy: Occupancy


def occupancy(
    capability: tuple[int, int], registers: int, shared_bytes: int, warps: int
) -> Occupancy:
    """What a multiprocessor of this capability holds of a kernel.

    Args:
        capability: 8.0 or later.
        registers: per thread, >= 1.
        shared_bytes: per program.
        warps: per program, >= 1.

    Raises:
        ValueError: the capability is below 8.0.
    """
    covering = [limits for first, limits in _LIMITS if first <= capability]
    if not covering:
        raise ValueError(f"no limits are known of compute capability {capability}")
    limits = covering[-1]
    per_warp = _rounded(registers * _LANES_PER_WARP, _REGISTER_UNIT)
    warps_by_registers = _QUARTERS * (_REGISTERS_PER_QUARTER // per_warp)
    shared = _rounded(shared_bytes + _SYSTEM_SHARED_BYTES, _SHARED_UNIT)
    return Occupancy(
        by_registers=warps_by_registers // warps,
        by_shared=limits.shared_bytes // shared,
        by_threads=limits.warps // warps,
        by_slots=limits.programs,
        warps=warps,
        most_warps=limits.warps,
    )


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
