"""The choice: a pure function of shape, rows, element type and device, the same on every worker.

The first of these that there is:

1. the caller's own table: its entry of exactly this shape, as it is;
2. its nearest entry, if both widths are within a factor of two, in kernels of ours alone;
3. the shipped table of the device or its generation: its entry of exactly this shape;
4. its nearest entry, as in 2;
5. the rules, which know no library.

In 1 to 4 bf16 and fp16 stand for each other, each entry's own type first. Where an entry's shape or
its number of multiprocessors is another, its specialised tiles get columns for even waves. The
deterministic plans are looked for in the same order: an entry of one's own that has none leaves them
to the shipped one, and that to the rules. Widths whose rows do not start on 16 bytes have one tile,
whatever a table says.
What a table of one's own holds must run on the device, or the table is refused; of a shipped one,
whose device may be a sibling, entries that do not are passed over. Nothing is tuned while a request
waits.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import log2

from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.device import DeviceProfile
from gatefuse_kernels.plan.fitting import is_aligned
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.rule_tiles import UNALIGNED
from gatefuse_kernels.plan.rules import (
    DETERMINISTIC_ROWS,
    deterministic_by_rule,
    down_by_rule,
    plans_by_rule,
    tiles_by_rule,
    two_launch_by_rule,
)
from gatefuse_kernels.plan.shipped_tables import table_of_generation
from gatefuse_kernels.plan.summation import add_alike
from gatefuse_kernels.plan.table import Entry, PlanTable
from gatefuse_kernels.plan.waves import in_even_waves, with_any_columns
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
        deterministic: plans that all add up in one order, under which a row's bits depend on
            nothing but the row and the weights.
        table: measured by the caller on this device; goes before the shipped ones.

    Raises:
        ValueError: `table` is of another device, or has a plan that cannot run on this one.
    """
    if table is not None:
        table.check_device(device)
    entries = _applied(shape, dtype, device, table)
    if deterministic:
        found = (entry.deterministic for entry in entries if entry.deterministic is not None)
        return next(found, None) or deterministic_by_rule(shape, dtype, device)
    entry = next(entries, None)
    return entry.row_plans() if entry else plans_by_rule(shape, dtype, device)


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
        ValueError: `rows` is out of range, or `table` is of no use here; see `plans_for`.
    """
    check_rows(rows, MAX_ROWS)
    plans = plans_for(shape, dtype, device, deterministic=deterministic, table=table)
    return plans.at(rows)


def shipped(dtype: DType, device: DeviceProfile) -> tuple[Plan, ...]:
    """Every plan that can be chosen without a table of one's own; that for unaligned widths last."""
    unaligned = Plan(Algorithm.TWO_LAUNCH, UNALIGNED, UNALIGNED, "rows that start on any byte")
    entries = _measured(table_of_generation(device), dtype, device)
    measured = [plan for entry in entries for plan in entry.plans]
    lent = (each for plan in measured for each in _lent(plan, dtype, device))
    return (*dict.fromkeys((*measured, *lent, *tiles_by_rule(dtype, device))), unaligned)


def _lent(plan: Plan, dtype: DType, device: DeviceProfile) -> Iterator[Plan]:
    """What `_in_even_waves` can make of a plan."""
    tile = plan.gate_up
    if tile is not None and tile.specialized:
        for lent in with_any_columns(tile, dtype, device):
            yield replace(plan, gate_up=lent)


def _applied(
    shape: MlpShape, dtype: DType, device: DeviceProfile, table: PlanTable | None
) -> Iterator[Entry]:
    """The entry of each table that holds for this shape, the caller's own first."""
    if not is_aligned(shape, dtype):
        return
    for source in (table, table_of_generation(device)):
        if source is None:
            continue
        # min() takes the first of equals: entries of this very type come first.
        entry = min(
            _measured(source, dtype, device),
            key=lambda entry: sum(_octaves(entry.shape, shape)),
            default=None,
        )
        if entry is None or max(_octaves(entry.shape, shape)) > _NEAR:
            continue
        is_exact = entry.shape == shape
        applied = entry if is_exact else _for_another_shape(entry, shape, dtype, device)
        # Its columns suit these very widths on so many multiprocessors, and no others.
        is_measured = is_exact and source.multiprocessors == device.multiprocessors
        yield applied if is_measured else _in_even_waves(applied, shape, dtype, device)


def _in_even_waves(entry: Entry, shape: MlpShape, dtype: DType, device: DeviceProfile) -> Entry:
    """The entry's plans with specialised tiles whose columns suit this shape on this device.

    How they add up does not depend on their columns.
    """

    def refitted(limit: int, plan: Plan) -> Plan:
        tile = plan.gate_up
        if tile is None or not tile.specialized:
            return plan
        even = in_even_waves(tile, limit, shape.intermediate, dtype, device)
        reason = f"{even.columns} columns for {device.multiprocessors} multiprocessors"
        return replace(plan, gate_up=even, reason=f"{reason}; {plan.reason}")

    return _changed(entry, refitted)


def _changed(entry: Entry, change: Callable[[int, Plan], Plan]) -> Entry:
    """The entry with `change(limit, plan)` for each plan."""
    alike = entry.deterministic
    return replace(
        entry,
        classes=tuple(replace(item, plan=change(item.up_to, item.plan)) for item in entry.classes),
        deterministic=alike and alike.each(change),
    )


def _measured(table: PlanTable | None, dtype: DType, device: DeviceProfile) -> Iterator[Entry]:
    """A table's entries for `dtype` whose plans all run on the device.

    bf16 and fp16 have one size and one rate, and stand for each other.
    """
    entries = [] if table is None else [entry for entry in table.entries if entry.fits(device)]
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

    What a library makes of another shape, and how exactly it adds up, nobody measured: its products
    are done by rule. Of deterministic plans whose sums are cut alike at the entry's widths and
    differently at these one is left: that of a few rows, where the mode should cost the least.
    """

    def borrowed(rows: int, plan: Plan) -> Plan:
        if plan.algorithm is Algorithm.LIBRARY:
            ours = two_launch_by_rule(shape, rows, dtype, device)
            return replace(ours, reason=f"the library at {entry.shape}; {ours.reason}")
        reason = f"as measured at {entry.shape}: {plan.reason}"
        if plan.algorithm is Algorithm.FUSED_GATE_UP:
            down = down_by_rule(shape, rows, dtype, device)
            return Plan(Algorithm.TWO_LAUNCH, plan.gate_up, down, reason)
        return replace(plan, reason=reason)

    alike = entry.deterministic
    if alike is not None and not add_alike(alike.plans, shape):
        entry = replace(entry, deterministic=RowPlans.of_one(alike.at(DETERMINISTIC_ROWS)))
    return _changed(entry, borrowed)
