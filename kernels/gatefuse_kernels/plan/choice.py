"""The choice: a pure function of shape, rows, element type and device, the same on every worker.

Looked for in this order: an entry of the caller's own table, a shipped entry of exactly this shape,
the nearest measured shape of the same generation (both widths within a factor of two), the rules.
Nothing is tuned while a request waits.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import log2

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.fitting import fits, is_aligned
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.rule_tiles import UNALIGNED
from gatefuse_kernels.plan.rules import (
    deterministic_by_rule,
    down_by_rule,
    library_by_rule,
    plans_by_rule,
    tiles_by_rule,
)
from gatefuse_kernels.plan.shipped_tables import table_of_generation
from gatefuse_kernels.plan.table import Entry, PlanTable
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape, check_rows

_NEAR = 1.0
"""Powers of two by which a width may differ from a measured one."""


@lru_cache(maxsize=1024)
def plans_for(
    shape: MlpShape,
    dtype: DType,
    device: DeviceProfile,
    *,
    deterministic: bool = False,
    table: PlanTable | None = None,
) -> RowPlans:
    """The plans of an MLP by row count.

    Args:
        shape: the MLP's widths.
        dtype: element type.
        device: the GPU.
        deterministic: one plan for all row counts, under which a row's bits depend on nothing but
            the row and the weights.
        table: measured by the caller on this device; goes before the shipped ones.

    Raises:
        ValueError: `table` is of another device.
    """
    if table is not None:
        table.check_device(device)
    nearest = _nearest(shape, dtype, device, table)
    entry = nearest and _applied(nearest, shape, dtype, device)
    if deterministic:
        fixed = entry and entry.deterministic
        plan = fixed or deterministic_by_rule(shape, dtype, device)
        return RowPlans((MAX_ROWS,), (plan,))
    return entry.row_plans() if entry else plans_by_rule(shape, dtype, device, nearest)


def choose(
    shape: MlpShape,
    rows: int,
    dtype: DType,
    device: DeviceProfile,
    *,
    deterministic: bool = False,
    table: PlanTable | None = None,
) -> Plan:
    """The plan for `rows` >= 1 rows; see `plans_for`.

    Raises:
        ValueError: `rows` is out of range, or `table` is of another device.
    """
    check_rows(rows, MAX_ROWS)
    plans = plans_for(shape, dtype, device, deterministic=deterministic, table=table)
    return plans.at(rows)


def shipped(dtype: DType, device: DeviceProfile) -> tuple[Plan, ...]:
    """Every plan that can be chosen without a table of one's own; that for unaligned widths last."""
    unaligned = Plan(Algorithm.TWO_LAUNCH, UNALIGNED, UNALIGNED, "rows that start on any byte")
    measured = (plan for entry in _measured(dtype, device, None) for plan in entry.plans)
    by_rule = (library_by_rule(dtype, device), *tiles_by_rule(dtype, device))
    return (*dict.fromkeys((*measured, *by_rule)), unaligned)


def _nearest(
    shape: MlpShape, dtype: DType, device: DeviceProfile, table: PlanTable | None
) -> Entry | None:
    """The measured shape nearest to this one, among those whose plans all run on the device."""
    usable = [
        entry
        for entry in _measured(dtype, device, table)
        if all(fits(plan, dtype, device) for plan in entry.plans)
    ]
    # min() takes the first of equals: the caller's own entries come first.
    return min(usable, key=lambda entry: sum(_octaves(entry.shape, shape)), default=None)


def _applied(entry: Entry, shape: MlpShape, dtype: DType, device: DeviceProfile) -> Entry | None:
    """The entry for this shape, if it is near enough and the kernels can load its rows."""
    if not is_aligned(shape, dtype):
        return None
    if entry.shape == shape:
        return entry
    if max(_octaves(entry.shape, shape)) > _NEAR:
        return None
    return _for_another_shape(entry, shape, dtype, device)


def _measured(dtype: DType, device: DeviceProfile, table: PlanTable | None) -> Iterator[Entry]:
    """The entries for `dtype`; bf16 and fp16 have one size and one rate, and stand for each other."""
    tables = [table, table_of_generation(device)]
    entries = [entry for source in tables if source is not None for entry in source.entries]
    yield from (entry for entry in entries if entry.dtype is dtype)
    if dtype is not DType.FP32:
        yield from (entry for entry in entries if entry.dtype not in (dtype, DType.FP32))


def _octaves(one: MlpShape, other: MlpShape) -> tuple[float, float]:
    """By how many powers of two hidden and intermediate differ."""
    return (
        abs(log2(one.hidden / other.hidden)),
        abs(log2(one.intermediate / other.intermediate)),
    )


def _for_another_shape(entry: Entry, shape: MlpShape, dtype: DType, device: DeviceProfile) -> Entry:
    """The entry's plans, all in kernels of ours.

    What a library makes of another shape, and how exactly it adds up, nobody measured.
    """

    def borrowed(plan: Plan, rows: int) -> Plan:
        reason = f"as measured at {entry.shape}: {plan.reason}"
        if plan.algorithm is Algorithm.FUSED_GATE_UP:
            down = down_by_rule(shape, rows, dtype, device)
            return Plan(Algorithm.TWO_LAUNCH, plan.gate_up, down, reason)
        return replace(plan, reason=reason)

    fixed = entry.deterministic
    return replace(
        entry,
        classes=tuple(
            replace(item, plan=borrowed(item.plan, item.up_to)) for item in entry.classes
        ),
        deterministic=fixed and borrowed(fixed, MAX_ROWS),
    )
