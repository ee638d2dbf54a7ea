"""Measured plans of one device: the value types, and how a table is looked up."""

from dataclasses import dataclass
from math import isfinite

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan.algorithm import Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.fitting import fits
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.summation import check_deterministic
from gatefuse_kernels.shapes import DType, MlpShape


@dataclass(frozen=True, slots=True)
class Measurement:
    """Where an entry's figures come from."""

    date: str
    torch: str
    triton: str
    command: str


@dataclass(frozen=True, slots=True)
class MeasuredClass:
    """One class of row counts.

    Attributes:
        up_to: its largest row count; MAX_ROWS in the last class.
        plan: the fastest that was measured.
        us: microseconds of that plan at `up_to` rows (in the last class: at the most measured).
            None: not measured at this shape. The entry's command did not get so far, and the class
            is filled in with the plan that there was before it, whose reason says from where.
        library_us: microseconds of the library's way at the same rows; None likewise.

    Raises:
        ValueError: a time is not a positive number.
    """

    up_to: int
    plan: Plan
    us: float | None
    library_us: float | None

    def __post_init__(self) -> None:
        for name, us in (("us", self.us), ("library_us", self.library_us)):
            if us is not None and not (us > 0 and isfinite(us)):
                raise ValueError(f"{name} must be positive and finite, got {us}")


@dataclass(frozen=True, slots=True)
class Entry:
    """What was measured for one shape and element type.

    Attributes:
        shape: the MLP's widths.
        dtype: element type.
        measured: where the figures come from.
        classes: ascending; the last holds for every larger row count.
        deterministic: the plans of the batch-invariant mode, which all add up in one order.

    Raises:
        ValueError: the classes do not ascend to MAX_ROWS, a deterministic plan's sums could
            depend on the row count, or a tile has no kernel for the element type.
    """

    shape: MlpShape
    dtype: DType
    measured: Measurement
    classes: tuple[MeasuredClass, ...]
    deterministic: RowPlans | None = None

    def __post_init__(self) -> None:
        self.row_plans()
        if self.deterministic is not None:
            check_deterministic(self.deterministic, self.shape)
        tiles = (tile for plan in self.plans for tile in (plan.gate_up, plan.down))
        if self.dtype is DType.FP32 and any(tile and tile.descriptors for tile in tiles):
            raise ValueError("fp32 has no tiles through descriptors")

    def row_plans(self) -> RowPlans:
        """The classes as a lookup by row count."""
        limits = tuple(measured.up_to for measured in self.classes)
        return RowPlans(limits, tuple(measured.plan for measured in self.classes))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan of the entry."""
        alike = () if self.deterministic is None else self.deterministic.plans
        return (*(measured.plan for measured in self.classes), *alike)

    def fits(self, device: DeviceProfile) -> bool:
        """Whether every plan can be launched on the device."""
        return all(fits(plan, self.dtype, device) for plan in self.plans)


# By identity: a table is loaded once, and hashing its contents at each lookup would cost more than
# what the lookup saves.
@dataclass(frozen=True, slots=True, eq=False)
class PlanTable:
    """The entries of one kind of device.

    Attributes:
        device: its name.
        capability: its compute capability.
        multiprocessors: a device with fewer, or more, is another device.
        entries: at most one per shape and element type.

    Raises:
        ValueError: a shape and element type has two entries, or there are no multiprocessors.
    """

    device: str
    capability: tuple[int, int]
    multiprocessors: int
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if self.multiprocessors < 1:
            raise ValueError(f"multiprocessors must be at least 1, got {self.multiprocessors}")
        keys = [(entry.shape, entry.dtype) for entry in self.entries]
        for shape, dtype in keys:
            if keys.count((shape, dtype)) > 1:
                raise ValueError(f"{shape} {dtype} has two entries")

    def is_of(self, device: DeviceProfile) -> bool:
        """Whether it was measured on such a device."""
        return (self.device, self.multiprocessors) == (device.name, device.multiprocessors)

    def check_device(self, device: DeviceProfile) -> None:
        """Raise PlanTableError unless it was measured on such a device, and all of it runs there."""
        if not self.is_of(device):
            raise PlanTableError(
                f"the plan table was measured on {self.device} with {self.multiprocessors} "
                f"multiprocessors, but this is {device.name} with {device.multiprocessors}"
            )
        for entry in self.entries:
            for plan in entry.plans:
                if not fits(plan, entry.dtype, device):
                    raise PlanTableError(
                        f"the plan table's entry {entry.shape} {entry.dtype} has a plan that does "
                        f"not fit {device.name}: {plan}"
                    )

    def entry(self, shape: MlpShape, dtype: DType) -> Entry | None:
        """The entry of exactly this shape and element type."""
        for entry in self.entries:
            if (entry.shape, entry.dtype) == (shape, dtype):
                return entry
        return None
