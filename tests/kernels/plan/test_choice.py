"""Which plan is chosen, and from where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatefuse_kernels import plan
from gatefuse_kernels.plan import KNOWN_DEVICES, Algorithm, DeviceProfile, Plan, PlanTable, Tile
from gatefuse_kernels.plan.fitting import fits
from gatefuse_kernels.plan.shipped_tables import shipped_tables
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
@given(shapes, st.sampled_from(DType), st.sampled_from(DEVICES), st.data())
def test_the_deterministic_plan_does_not_see_the_rows(
    shape: MlpShape, dtype: DType, device: DeviceProfile, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, MAX_ROWS))
    first, other = (
        plan.choose(shape, count, dtype, device, deterministic=True) for count in (1, rows)
    )
    assert first == other
    assert first.algorithm is Algorithm.TWO_LAUNCH
    assert first.tiles[1].splits == 1


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
    for tile in (chosen.gate_up, chosen.down):
        assert tile is None or tile.grid(MAX_ROWS, MAX_WIDTH) <= plan.MAX_GRID
    # The one plan for all row counts has smaller tiles: it says so, and wraps nowhere.
    for tile in plan.choose(widest, MAX_ROWS, dtype, H200, deterministic=True).tiles:
        with pytest.raises(ValueError, match="programs"):
            tile.grid(MAX_ROWS, MAX_WIDTH)


def test_a_shipped_entry_is_used_as_it_was_measured() -> None:
    [table] = [table for table in shipped_tables() if table.is_of(H200)]
    for entry in table.entries:
        assert plan.plans_for(entry.shape, entry.dtype, H200) == entry.row_plans()
        fixed = plan.choose(entry.shape, 5, entry.dtype, H200, deterministic=True)
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


def test_where_nobody_measured_the_library_multiplies_many_rows() -> None:
    few, many = (plan.choose(SHAPE, rows, DType.BF16, L40S) for rows in (419, 420))
    assert few.algorithm is Algorithm.TWO_LAUNCH
    assert many.algorithm is Algorithm.LIBRARY
    assert many.reason.startswith(
        "more than 419 rows of bf16 are bound by arithmetic on NVIDIA L40S"
    )
    # Each element type has its own crossover and its own measurements.
    assert plan.choose(SHAPE, 29, DType.FP32, H200).algorithm is Algorithm.LIBRARY
    # A batch-invariant plan has no library to fall back on.
    fixed = plan.choose(SHAPE, 420, DType.BF16, L40S, deterministic=True)
    assert fixed.algorithm is Algorithm.TWO_LAUNCH


def test_what_was_measured_on_such_a_gpu_decides_for_far_shapes_too() -> None:
    """Ours where ours won, if only gate_up: how exactly a library adds up elsewhere nobody checked."""
    far = MlpShape(16384, 1024)
    shipped = plan.choose(far, 5000, DType.BF16, H200)
    assert shipped.algorithm is Algorithm.TWO_LAUNCH
    assert shipped.reason.startswith("not measured here: our kernels")
    for algorithm in (Algorithm.LIBRARY, Algorithm.FUSED_GATE_UP, Algorithm.TWO_LAUNCH):
        tile = Tile(128, 64, 32, 8, 4, False)
        shown = Plan(
            algorithm,
            tile if algorithm.tiles_gate_up else None,
            tile if algorithm.tiles_down else None,
            "mine",
        )
        chosen = plan.choose(far, 5000, DType.BF16, L40S, table=make_table(SHAPE, L40S, shown))
        is_library = algorithm is Algorithm.LIBRARY
        assert chosen.algorithm is (Algorithm.LIBRARY if is_library else Algorithm.TWO_LAUNCH)


def test_a_near_shape_borrows_kernels_of_ours_alone() -> None:
    tile = Tile(128, 64, 32, 8, 4, False)
    shown = Plan(Algorithm.FUSED_GATE_UP, tile, None, "mine")
    table = make_table(SHAPE, L40S, shown)
    assert plan.choose(SHAPE, 5000, DType.BF16, L40S, table=table) == shown
    near = plan.choose(MlpShape(4096, 12288), 5000, DType.BF16, L40S, table=table)
    assert (near.algorithm, near.gate_up) == (Algorithm.TWO_LAUNCH, tile)
    assert near.reason.startswith(f"as measured at {SHAPE}")


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


def make_table(shape: MlpShape, device: DeviceProfile, mine: Plan = MINE) -> PlanTable:
    """One's own table, with one plan for all rows of one shape."""
    [shipped] = [table for table in shipped_tables() if table.is_of(H200)]
    last = replace(shipped.entries[0].classes[-1], plan=mine)
    entry = replace(shipped.entries[0], shape=shape, classes=(last,), deterministic=None)
    return PlanTable(device.name, device.capability, device.multiprocessors, (entry,))


@pytest.mark.parametrize("device", [H200, L40S], ids=lambda device: device.slug)
def test_ones_own_table_goes_first(device: DeviceProfile) -> None:
    table = make_table(SHAPE, device)
    assert plan.choose(SHAPE, 16, DType.BF16, device, table=table).reason == "mine"
    # Nearest, among both tables: an equal distance is decided for one's own.
    near = plan.choose(MlpShape(4096, 12288), 16, DType.BF16, device, table=table)
    assert near.reason == "as measured at 4096x14336: mine"
    small = plan.choose(SMALL, 16, DType.BF16, device, table=table)
    assert "mine" not in small.reason, "not within a factor of two"


def test_a_table_of_another_device_is_refused() -> None:
    table = make_table(SHAPE, L40S)
    with pytest.raises(ValueError, match=r"measured on NVIDIA L40S .* but this is NVIDIA H200"):
        plan.choose(SHAPE, 16, DType.BF16, H200, table=table)


@pytest.mark.parametrize("rows", [-1, MAX_ROWS + 1])
def test_rows_are_checked(rows: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        plan.choose(SHAPE, rows, DType.BF16, H200)
