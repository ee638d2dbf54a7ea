"""Row counts that get a CUDA graph: close enough that padding is cheap, and few enough."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatefuse_kernels.plan import KNOWN_DEVICES, DeviceProfile, graph_buckets, plans_for
from gatefuse_kernels.plan.algorithm import Algorithm, Plan
from gatefuse_kernels.plan.buckets import PADDING_COST, buckets_by_time
from gatefuse_kernels.plan.cost import predicted_s
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.textbook import textbook_plans
from gatefuse_kernels.shapes import MAX_ROWS, DType, MlpShape, bucket_for

H200 = KNOWN_DEVICES["nvidia-h200"]
SHAPE = MlpShape(4096, 14336)
LIBRARY = RowPlans.of_one(Plan(Algorithm.LIBRARY, None, None, "test"))

devices = st.sampled_from(list(KNOWN_DEVICES.values()))
widths = st.sampled_from([256, 896, 1024, 2048, 4096, 5120, 6144, 8192, 14336, 28672])
shapes = st.builds(MlpShape, widths, widths)
dtypes = st.sampled_from(DType)


def plans_named(name: str, shape: MlpShape, dtype: DType, device: DeviceProfile) -> RowPlans:
    if name == "library":
        return LIBRARY
    if name == "textbook":
        return textbook_plans(shape, dtype)
    return plans_for(shape, dtype, device, deterministic=name == "deterministic")


names = st.sampled_from(["fused", "deterministic", "library", "textbook"])


@settings(deadline=None)
@given(names, shapes, dtypes, devices, st.integers(1, 8192), st.data())
def test_padding_costs_five_percent_at_most(
    name: str,
    shape: MlpShape,
    dtype: DType,
    device: DeviceProfile,
    max_rows: int,
    data: st.DataObject,
) -> None:
    plans = plans_named(name, shape, dtype, device)
    buckets = graph_buckets(max_rows, shape, dtype, device, plans)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] >= 1
    assert buckets[-1] == max_rows
    rows = data.draw(st.integers(1, max_rows))
    bucket = bucket_for(rows, buckets)
    own, padded = (
        predicted_s(plans.at(count), shape, count, dtype, device) for count in (rows, bucket)
    )
    assert padded <= PADDING_COST * own * (1 + 1e-9)
    assert plans.at(rows) == plans.at(bucket), "padding never changes the kernels"


@settings(deadline=None)
@given(names, shapes, dtypes, devices)
def test_buckets_are_few(name: str, shape: MlpShape, dtype: DType, device: DeviceProfile) -> None:
    plans = plans_named(name, shape, dtype, device)
    assert len(graph_buckets(256, shape, dtype, device, plans)) <= 16
    assert len(graph_buckets(8192, shape, dtype, device, plans)) <= 100


def test_each_doubling_adds_fourteen() -> None:
    plans = plans_for(SHAPE, DType.BF16, H200)
    few, many = (
        len(graph_buckets(rows, SHAPE, DType.BF16, H200, plans)) for rows in (8192, 1 << 16)
    )
    assert many - few <= 3 * 15


@pytest.mark.parametrize("shape", [SHAPE, MlpShape(2048, 6144), MlpShape(8192, 28672)], ids=str)
@pytest.mark.parametrize("name", ["fused", "deterministic", "library"])
def test_the_number_at_usual_sizes(name: str, shape: MlpShape) -> None:
    plans = plans_named(name, shape, DType.BF16, H200)
    assert len(graph_buckets(256, shape, DType.BF16, H200, plans)) <= 8
    assert len(graph_buckets(8192, shape, DType.BF16, H200, plans)) <= 64


def test_the_usual_service() -> None:
    """Memory-bound: one bucket per class of the plan. Compute-bound: every tile of rows."""
    plans = plans_for(SHAPE, DType.BF16, H200)
    buckets = graph_buckets(512, SHAPE, DType.BF16, H200, plans)
    assert buckets == (1, 2, 16, 32, 64, 128, 192, 256, 384, 512)
    assert graph_buckets(1, SHAPE, DType.BF16, H200, plans) == (1,)
    assert graph_buckets(7, SHAPE, DType.BF16, H200, plans) == (1, 2, 7)
    assert graph_buckets(17, SHAPE, DType.BF16, H200, plans) == (1, 2, 16, 17)


def test_buckets_by_time() -> None:
    assert buckets_by_time(100, lambda rows: 1.0, ()) == (100,)
    assert buckets_by_time(100, lambda rows: 1.0, (40, 100, 200)) == (40, 100)
    assert buckets_by_time(64, lambda rows: float(rows), ()) == (16, 32, 48, 64)
    # 4 % a step: one step of padding, never two.
    steps = buckets_by_time(128, lambda rows: 1.04 ** -(-rows // 16), ())
    assert steps == (32, 64, 96, 128)


def test_the_largest_batches_take_few_evaluations() -> None:
    """Counted, not timed: 2**24 rows are a million multiples of 16."""
    plan = plans_for(SHAPE, DType.BF16, H200)
    calls = 0

    def seconds(rows: int) -> float:
        nonlocal calls
        calls += 1
        return predicted_s(plan.at(rows), SHAPE, rows, DType.BF16, H200)

    buckets = buckets_by_time(MAX_ROWS, seconds, plan.limits)
    assert calls <= 10_000
    assert len(buckets) <= 45 + 15 * 11, "14 for each doubling from 8192 on, or one more"
    for last, bucket in pairwise(buckets):
        assert seconds(bucket) <= PADDING_COST * seconds(last + 1) * (1 + 1e-9)


def test_a_limit_that_changes_no_kernel_is_no_bucket() -> None:
    rules = plans_for(SHAPE, DType.BF16, KNOWN_DEVICES["nvidia-l40s"])
    assert 419 in rules.limits, "where arithmetic begins"
    assert rules.at(419) == rules.at(420)
    buckets = graph_buckets(512, SHAPE, DType.BF16, KNOWN_DEVICES["nvidia-l40s"], rules)
    assert 419 not in buckets


def test_a_dip_in_time_is_not_padded_over() -> None:
    """Behind 16 rows a faster kernel runs: its rows are not padded to where it is slower again."""
    times = {16: 1.0, 32: 0.9, 48: 0.98}
    assert buckets_by_time(48, lambda rows: times[-(-rows // 16) * 16], ()) == (32, 48)


@pytest.mark.parametrize("max_rows", [0, -1, MAX_ROWS + 1])
def test_max_rows_is_checked(max_rows: int) -> None:
    with pytest.raises(ValueError, match="max_rows"):
        graph_buckets(max_rows, SHAPE, DType.BF16, H200, LIBRARY)


def test_predicted_time() -> None:
    """4096x14336 in bf16: 352 MB at 4.8 TB/s, and 4096 rows of 361 GFLOP a thousand at 989 TFLOP/s."""
    plan = plans_for(SHAPE, DType.BF16, H200).at(1)
    assert predicted_s(plan, SHAPE, 1, DType.BF16, H200) == pytest.approx(75.8e-6, rel=0.01)
    plan = plans_for(SHAPE, DType.BF16, H200).at(4096)
    assert predicted_s(plan, SHAPE, 4096, DType.BF16, H200) == pytest.approx(1461e-6, rel=0.01)
    plan = plans_for(SHAPE, DType.BF16, H200).at(512)
    assert plan.tiles[0].rows == plan.tiles[1].rows == 128
    # A masked row of a tile costs what a real one does.
    many, one_more = (predicted_s(plan, SHAPE, rows, DType.BF16, H200) for rows in (1152, 1025))
    assert many == pytest.approx(one_more, rel=0.01)
