"""Which plan is chosen, and from where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatefuse_kernels import plan
from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan import (
    KNOWN_DEVICES,
    Algorithm,
    DeviceProfile,
    Plan,
    PlanTable,
    RowPlans,
    Tile,
)
from gatefuse_kernels.plan.fitting import fits
from gatefuse_kernels.plan.shipped_tables import shipped_tables
from gatefuse_kernels.plan.summation import check_deterministic
from gatefuse_kernels.plan.table import Entry
from gatefuse_kernels.shapes import MAX_ROWS, MAX_WIDTH, DType, MlpShape

SHAPE = MlpShape(4096, 14336)
SMALL = MlpShape(2048, 6144)
H200 = KNOWN_DEVICES["nvidia-h200"]
L40S = KNOWN_DEVICES["nvidia-l40s"]
# Boards nobody has heard of: an old, small one and a new, large one.
UNKNOWN = (
    plan.profile_for("NVIDIA Small", (8, 7), 8, 163 << 10, 4 << 20),
    plan.profile_for("NVIDIA Large", (13, 0), 300, 227 << 10, 200 << 20),
)
DEVICES = (*KNOWN_DEVICES.values(), *UNKNOWN)

widths = st.one_of(
    st.integers(1, MAX_WIDTH), st.sampled_from([1024, 2048, 4096, 5120, 6144, 14336, 28672])
)
shapes = st.builds(MlpShape, widths, widths)


@settings(deadline=None)
@given(shapes, st.integers(1, 1 << 16), st.sampled_from(DType), st.sampled_from(DEVICES))
def test_every_plan_can_be_launched(
    shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile
) -> None:
    for deterministic in (False, True):
        chosen = plan.choose(shape, rows, dtype, device, deterministic=deterministic)
        assert fits(chosen, dtype, device), chosen
        assert chosen.reason


@settings(deadline=None)
@given(shapes, st.sampled_from(DType), st.sampled_from(DEVICES))
def test_deterministic_plans_add_up_in_one_order(
    shape: MlpShape, dtype: DType, device: DeviceProfile
) -> None:
    """At every shape, also one whose plans are lent from another."""
    check_deterministic(plan.plans_for(shape, dtype, device, deterministic=True), shape)


@pytest.mark.parametrize("shape", [SHAPE, SMALL, MlpShape(4096, 4096)], ids=str)
@pytest.mark.parametrize("device", [H200, L40S], ids=lambda device: device.slug)
@pytest.mark.parametrize("dtype", DType)
def test_representatives_meet_every_plan(
    dtype: DType, device: DeviceProfile, shape: MlpShape
) -> None:
    """What warm-up runs is what 1..max_rows rows can need: nothing compiles on a request."""
    plans = plan.plans_for(shape, dtype, device)
    for max_rows in (1, 15, 16, 17, 64, 65, 300, 513, 1000):
        representatives = plans.representatives(max_rows)
        warmed = {plans.at(rows) for rows in representatives}
        needed = {plan.choose(shape, rows, dtype, device) for rows in range(1, max_rows + 1)}
        assert warmed == needed
        assert max(representatives) == max_rows


@pytest.mark.parametrize("device", [H200, L40S], ids=lambda device: device.slug)
@pytest.mark.parametrize("dtype", DType)
def test_every_choice_is_shipped(dtype: DType, device: DeviceProfile) -> None:
    """What the compiler is checked on is what runs."""
    plans = plan.shipped(dtype, device)
    gate_ups, downs = {item.gate_up for item in plans}, {item.down for item in plans}
    for shape in (SHAPE, SMALL, MlpShape(4096, 12288), MlpShape(37, 101), MlpShape(8192, 512)):
        for rows in (1, 17, 33, 65, 129, 257, 5000):
            for deterministic in (False, True):
                chosen = plan.choose(shape, rows, dtype, device, deterministic=deterministic)
                assert chosen.gate_up in gate_ups
                assert chosen.down in downs


@pytest.mark.parametrize("dtype", DType)
def test_unaligned_widths_get_their_tile_where_they_matter(dtype: DType) -> None:
    narrow = plan.shipped(dtype, H200)[-1].gate_up
    first = plan.choose(MlpShape(4097, 14336), 16, dtype, H200)
    second = plan.choose(MlpShape(4096, 14335), 16, dtype, H200)
    assert (first.gate_up, second.down) == (narrow, narrow)
    assert narrow not in (first.down, second.gate_up)


@pytest.mark.parametrize("dtype", DType)
def test_aligned_limits_fit_a_launch(dtype: DType) -> None:
    """The widest shape at the most rows still has an int32 grid, on axis 0 alone."""
    widest = MlpShape(MAX_WIDTH, MAX_WIDTH)
    chosen = plan.choose(widest, MAX_ROWS, dtype, H200)
    fixed = plan.choose(widest, MAX_ROWS, dtype, H200, deterministic=True)
    # Those of float32 and of the one plan for all row counts are smaller, and no memory holds so
    # many: they say so, and wrap nowhere.
    small = [*fixed.tiles, *(chosen.tiles if dtype is DType.FP32 else ())]
    for tile in (chosen.gate_up, chosen.down):
        assert tile is None or tile in small or tile.grid(MAX_ROWS, MAX_WIDTH) <= plan.MAX_GRID
    for tile in small:
        with pytest.raises(ValueError, match="programs"):
            tile.grid(MAX_ROWS, MAX_WIDTH)


def test_a_shipped_entry_is_used_as_it_was_measured() -> None:
    [table] = [table for table in shipped_tables() if table.is_of(H200)]
    for entry in table.entries:
        assert plan.plans_for(entry.shape, entry.dtype, H200) == entry.row_plans()
        fixed = plan.plans_for(entry.shape, entry.dtype, H200, deterministic=True)
        assert fixed == entry.deterministic
        # fp16 has the size and the rate of bf16.
        assert plan.plans_for(entry.shape, DType.FP16, H200) == entry.row_plans()


def test_a_near_shape_borrows_and_a_far_one_follows_rules() -> None:
    near = plan.choose(MlpShape(4096, 12288), 16, DType.BF16, H200)
    assert near == plan.choose(SHAPE, 16, DType.BF16, H200)
    assert near.reason.startswith("as measured at 4096x14336: ")
    far = plan.choose(MlpShape(16384, 1024), 16, DType.BF16, H200)
    assert far.reason.startswith("not measured")
    # A board of the same generation borrows, too; one of another does not.
    h100 = KNOWN_DEVICES["nvidia-h100-80gb-hbm3"]
    assert plan.choose(SHAPE, 16, DType.BF16, h100) == plan.choose(SHAPE, 16, DType.BF16, H200)
    assert plan.choose(SHAPE, 16, DType.BF16, L40S).reason.startswith("not measured")


def _specialized(shape: MlpShape, rows: int, device: DeviceProfile = H200) -> Tile:
    tile = plan.choose(shape, rows, DType.BF16, device).gate_up
    assert tile is not None
    assert tile.specialized
    return tile


def test_a_borrowed_specialized_tile_has_columns_for_even_waves() -> None:
    """96 columns are one wave of 132 for 6144, and two, the second almost empty, for 8192."""
    assert _specialized(SMALL, 256).columns == 96
    for hidden in (2048, 3072):
        assert _specialized(MlpShape(hidden, 8192), 256).columns == 128
        assert _specialized(MlpShape(hidden, 8192), 128).columns == 64
    assert _specialized(SHAPE, 64).columns == 112
    assert _specialized(MlpShape(4096, 16384), 64).columns == 128


def test_a_specialized_tile_suits_a_sibling_with_fewer_multiprocessors() -> None:
    sibling = KNOWN_DEVICES["nvidia-h100-pcie"]
    chosen = plan.choose(SMALL, 256, DType.BF16, sibling)
    assert _specialized(SMALL, 256, sibling).columns == 112
    assert chosen.reason.startswith("112 columns for 114 multiprocessors; ")
    # As many multiprocessors, under another name: as it was measured.
    twin = KNOWN_DEVICES["nvidia-h100-80gb-hbm3"]
    assert plan.choose(SMALL, 256, DType.BF16, twin) == plan.choose(SMALL, 256, DType.BF16, H200)


def test_lent_deterministic_plans_are_fitted_like_the_others() -> None:
    def at(shape: MlpShape, rows: int, device: DeviceProfile = H200) -> Plan:
        return plan.choose(shape, rows, DType.BF16, device, deterministic=True)

    lent = at(MlpShape(2048, 8192), 256)
    assert lent.reason.startswith("128 columns for 132 multiprocessors; as measured at 2048x6144: ")
    assert (at(SMALL, 256).tiles[0].columns, lent.tiles[0].columns) == (96, 128)
    sibling = KNOWN_DEVICES["nvidia-h100-pcie"]
    assert at(SMALL, 256, sibling).tiles[0].columns == 112
    assert at(SMALL, 1).tiles[0].rows == 16, "streamed tiles add up in another order"


def test_where_nobody_measured_our_kernels_multiply_many_rows() -> None:
    """A library would round gate and up on their way; where arithmetic takes the time it is told."""
    few, many = (plan.choose(SHAPE, rows, DType.BF16, L40S) for rows in (419, 420))
    assert few.algorithm is many.algorithm is Algorithm.TWO_LAUNCH
    assert few.reason == "not measured here: tiles by shared memory and processors"
    assert many.reason.startswith("not measured here, and bound by arithmetic above 419 rows: ")
    assert many.reason.endswith("`gatefuse tune` measures")
    # Each element type has its own crossover.
    single = plan.choose(SHAPE, 29, DType.FP32, H200)
    assert single.algorithm is Algorithm.TWO_LAUNCH
    assert "above 28 rows" in single.reason
    far = plan.choose(MlpShape(16384, 1024), 5000, DType.BF16, H200)
    assert far.algorithm is Algorithm.TWO_LAUNCH
    assert far.reason.startswith("not measured here")


@settings(deadline=None)
@given(shapes, st.integers(1, MAX_ROWS), st.sampled_from(DType), st.sampled_from(DEVICES))
def test_no_rule_and_no_shipped_table_leaves_gate_and_up_to_the_library(
    shape: MlpShape, rows: int, dtype: DType, device: DeviceProfile
) -> None:
    assert plan.choose(shape, rows, dtype, device).algorithm.tiles_gate_up


@pytest.mark.parametrize(
    ("shape", "odd"),
    [
        (MlpShape(4097, 14336), "hidden 4097 bf16"),
        (MlpShape(4096, 14335), "intermediate 14335 bf16"),
        (MlpShape(130, 1001), "hidden 130 and intermediate 1001 bf16"),
    ],
    ids=str,
)
def test_the_reason_at_odd_widths(shape: MlpShape, odd: str) -> None:
    """There is nothing to measure: `gatefuse tune` refuses them."""
    for rows in (1, 5000):
        reason = plan.choose(shape, rows, DType.BF16, H200).reason
        assert reason.startswith(f"rows of {odd} do not start on 16 bytes: the one tile")
    fixed = plan.choose(shape, 1, DType.BF16, H200, deterministic=True)
    assert fixed.reason.startswith(f"deterministic: rows of {odd} do not start")


def test_a_near_shape_borrows_kernels_of_ours_alone() -> None:
    tile = Tile(128, 64, 32, 8, 4, False)
    near = MlpShape(4096, 12288)
    shown = Plan(Algorithm.FUSED_GATE_UP, tile, None, "mine")
    table = make_table(SHAPE, L40S, shown)
    assert plan.choose(SHAPE, 5000, DType.BF16, L40S, table=table) == shown
    borrowed = plan.choose(near, 5000, DType.BF16, L40S, table=table)
    assert (borrowed.algorithm, borrowed.gate_up) == (Algorithm.TWO_LAUNCH, tile)
    assert borrowed.reason.startswith(f"as measured at {SHAPE}")
    # One's own table may say library, at its own shape.
    table = make_table(SHAPE, L40S, Plan(Algorithm.LIBRARY, None, None, "mine"))
    assert plan.choose(SHAPE, 5000, DType.BF16, L40S, table=table).algorithm is Algorithm.LIBRARY
    borrowed = plan.choose(near, 5000, DType.BF16, L40S, table=table)
    assert borrowed == plan.choose(near, 5000, DType.BF16, L40S)
    assert borrowed.reason.startswith(f"the library at {SHAPE}; not measured here")


def test_no_table_changes_the_plan_of_rows_that_start_on_any_byte() -> None:
    odd = MlpShape(130, 1000)
    tile = Tile(64, 64, 32, 4, 3, False, descriptors=True)
    table = make_table(odd, H200, Plan(Algorithm.TWO_LAUNCH, tile, tile, "mine"))
    assert not plan.choose(odd, 4, DType.BF16, H200, table=table).tiles[0].descriptors


def test_few_columns_get_narrower_tiles() -> None:
    """By rule: a program for three quarters of the multiprocessors, where a tile gives that."""
    wide, narrow = (
        plan.choose(MlpShape(hidden, 512), 16, DType.BF16, H200).tiles[1]
        for hidden in (16384, 1024)
    )
    assert (wide.columns, narrow.columns) == (32, 16)


MINE = Plan(
    Algorithm.TWO_LAUNCH, Tile(16, 16, 64, 4, 2, True), Tile(16, 16, 64, 4, 2, True), "mine"
)


def make_table(
    shape: MlpShape, device: DeviceProfile, mine: Plan = MINE, entry: Entry | None = None
) -> PlanTable:
    """One's own table: of this entry, or one plan for all rows of one shape."""
    if entry is None:
        [shipped] = [table for table in shipped_tables() if table.is_of(H200)]
        last = replace(shipped.entries[0].classes[-1], plan=mine)
        entry = replace(shipped.entries[0], shape=shape, classes=(last,), deterministic=None)
    return PlanTable(device.name, device.capability, device.multiprocessors, (entry,))


@pytest.mark.parametrize("device", [H200, L40S], ids=lambda device: device.slug)
def test_ones_own_table_goes_first(device: DeviceProfile) -> None:
    table = make_table(SHAPE, device)
    for dtype in (DType.BF16, DType.FP16):
        assert plan.choose(SHAPE, 16, dtype, device, table=table).reason == "mine"
    near = plan.choose(MlpShape(4096, 12288), 16, DType.BF16, device, table=table)
    assert near.reason == "as measured at 4096x14336: mine"
    small = plan.choose(SMALL, 16, DType.BF16, device, table=table)
    assert "mine" not in small.reason, "not within a factor of two"


def test_a_near_entry_of_ones_own_goes_before_a_shipped_one_of_the_shape() -> None:
    table = make_table(MlpShape(4096, 12288), H200)
    assert plan.choose(SHAPE, 16, DType.BF16, H200).tiles != MINE.tiles
    chosen = plan.choose(SHAPE, 16, DType.BF16, H200, table=table)
    assert chosen.reason == "as measured at 4096x12288: mine"
    # Of two entries of one's own, that of the very shape.
    both = PlanTable(
        table.device,
        table.capability,
        table.multiprocessors,
        (*table.entries, *make_table(SHAPE, H200).entries),
    )
    assert plan.choose(SHAPE, 16, DType.BF16, H200, table=both).reason == "mine"


def test_a_deterministic_plan_that_ones_own_entry_lacks() -> None:
    """Is the shipped one, else that of the rules."""
    for device, shape in ((H200, SHAPE), (L40S, SHAPE), (H200, MlpShape(16384, 1024))):
        usual = plan.choose(shape, 5, DType.BF16, device, deterministic=True)
        table = make_table(shape, device)
        fixed = plan.choose(shape, 5, DType.BF16, device, deterministic=True, table=table)
        assert (fixed, fixed.reason) == (usual, usual.reason)
    [entry] = make_table(SHAPE, H200).entries
    table = make_table(SHAPE, H200, entry=replace(entry, deterministic=RowPlans.of_one(MINE)))
    fixed = plan.choose(SHAPE, 5, DType.BF16, H200, deterministic=True, table=table)
    assert fixed.reason == "mine"


def test_lent_deterministic_plans_that_would_be_cut_at_several_places_are_one() -> None:
    measured = MlpShape(4096, 12288)
    few, many = (Tile(rows, 64, rows, 4, 2, True, splits=3) for rows in (64, 128))
    plans = tuple(
        Plan(Algorithm.TWO_LAUNCH, replace(tile, splits=1), tile, "mine") for tile in (few, many)
    )
    [entry] = make_table(measured, H200).entries
    table = make_table(
        measured, H200, entry=replace(entry, deterministic=RowPlans((64, MAX_ROWS), plans))
    )

    def downs(shape: MlpShape) -> list[Tile]:
        found = plan.plans_for(shape, DType.BF16, H200, deterministic=True, table=table)
        return [each.tiles[1] for each in found.plans]

    assert downs(measured) == [few, many]
    assert downs(MlpShape(4096, 6144)) == [few, many], "twice, thrice as many steps: the same cuts"
    assert downs(SHAPE) == [few], "of 14336 a third is 75 steps of 64, and no whole steps of 128"


def test_ones_own_plan_that_does_not_fit_is_refused_by_name() -> None:
    large = Tile(128, 128, 64, 8, 4, False)
    table = make_table(SHAPE, L40S, Plan(Algorithm.TWO_LAUNCH, large, large, "mine"))
    with pytest.raises(PlanTableError, match=r"4096x14336 bf16 .* does not fit NVIDIA L40S"):
        plan.choose(SHAPE, 16, DType.BF16, L40S, table=table)


def test_a_table_of_another_device_is_refused() -> None:
    table = make_table(SHAPE, L40S)
    with pytest.raises(ValueError, match=r"measured on NVIDIA L40S .* but this is NVIDIA H200"):
        plan.choose(SHAPE, 16, DType.BF16, H200, table=table)


@pytest.mark.parametrize("rows", [-1, MAX_ROWS + 1])
def test_rows_are_checked(rows: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        plan.choose(SHAPE, rows, DType.BF16, H200)
