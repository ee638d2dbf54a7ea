"""Sums, gains and quantiles."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatefuse.status.samples import Change, Sample, Samples, quantile


def _counter(**values: float) -> Samples:
    return Samples(Sample("c_total", {"model": name}, value) for name, value in values.items())


def test_series_are_summed_by_the_labels_that_are_asked_for() -> None:
    found = Samples(
        [
            Sample("c_total", {"a": "1", "b": "x"}, 1),
            Sample("c_total", {"a": "1", "b": "y"}, 2),
            Sample("c_total", {"a": "2", "b": "x"}, 4),
            Sample("other", {"a": "1"}, 8),
        ]
    )
    assert found.by("c_total", "a") == {("1",): 3, ("2",): 4}
    assert found.by("c_total", "b", "a", b="x") == {("x", "1"): 1, ("x", "2"): 4}
    assert found.by("c_total", "none") == {("",): 7}
    assert found.total("c_total") == 7
    assert found.total("c_total", a="3") == 0
    assert found.total("nothing") == 0


def test_labels_are_those_of_series_that_are_set() -> None:
    found = Samples([Sample("i", {"v": "1"}, 1), Sample("i", {"v": "2"}, 0)])
    assert found.labels("i") == [{"v": "1"}]
    assert found.labels("j") == []


def test_a_counter_that_fell_began_anew() -> None:
    change = Change(_counter(a=10, b=10), _counter(a=14, b=3, c=5), 2.0)
    assert change.by("c_total", "model") == {("a",): 4, ("b",): 3, ("c",): 5}
    assert change.rate("c_total", model="a") == 2


def test_buckets_are_gains_by_bound() -> None:
    def at(low: float, high: float) -> Samples:
        bounds = {"0.5": low, "+Inf": high}
        return Samples(Sample("h_bucket", {"model": "a", "le": le}, n) for le, n in bounds.items())

    change = Change(at(1, 2), at(4, 9), 1.0)
    assert change.buckets("h", "model") == {("a",): {0.5: 3, inf: 7}}
    assert change.buckets("h") == {(): {0.5: 3, inf: 7}}


@pytest.mark.parametrize(
    ("share", "buckets", "value"),
    [
        (0.5, {}, None),
        (0.5, {1.0: 0, inf: 0}, None),
        (0.5, {1.0: 10, inf: 10}, 0.5),  # the first bucket begins at 0
        (0.99, {1.0: 100, inf: 100}, 0.99),
        (0.5, {1.0: 10, 2.0: 20, inf: 20}, 1.0),  # on an edge
        (0.75, {1.0: 10, 2.0: 20, inf: 20}, 1.5),
        (0.75, {1.0: 10, 2.0: 10, 4.0: 20, inf: 20}, 3.0),  # an empty bucket between
        (0.99, {1.0: 1, 2.0: 1, inf: 4}, 2.0),  # beyond the last bound: that bound
        (0.5, {1.0: 0, 2.0: 0, inf: 4}, 2.0),
        (0.0, {1.0: 0, 2.0: 3, inf: 3}, 1.0),  # the least is in the second bucket
        (1.0, {1.0: 1, 2.0: 3, 4.0: 3, inf: 3}, 2.0),
    ],
)
def test_quantiles(share: float, buckets: dict[float, float], value: float | None) -> None:
    assert quantile(share, buckets) == value


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_its_rank(counts: list[int], share: float) -> None:
    bounds = [*map(float, range(1, len(counts))), inf]
    cumulative = {bound: float(sum(counts[: i + 1])) for i, bound in enumerate(bounds)}
    value = quantile(share, cumulative)
    total = sum(counts)
    if not total:
        assert value is None
        return
    assert value is not None
    assert 0 <= value <= bounds[-2]
    at_or_below = sum(n for n, bound in zip(counts, bounds, strict=True) if bound - 1 < value)
    assert at_or_below >= share * total - 1e-9 or value == bounds[-2]
