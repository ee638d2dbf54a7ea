"""What is sent and when: cells, shares of processes, arrival times."""

from __future__ import annotations

import numpy as np
import pytest

from gatefuse.commands.loadtest.plan import Cell, Load, plan_cells
from gatefuse.commands.loadtest.schedule import arrival_times


def test_models_take_turns_under_the_same_load() -> None:
    loads = (Load(concurrency=1), Load(concurrency=8))
    cells = plan_cells(("a", "b"), (1, 16), loads)
    assert cells[:3] == (Cell("a", 1, loads[0]), Cell("b", 1, loads[0]), Cell("a", 1, loads[1]))
    assert len(cells) == len(set(cells)) == 8


@pytest.mark.parametrize(("concurrency", "rate"), [(0, 0.0), (1, 1.0), (-1, 0.0)])
def test_load_is_open_or_closed(concurrency: int, rate: float) -> None:
    with pytest.raises(ValueError, match="either a concurrency or a rate"):
        Load(concurrency=concurrency, rate=rate)


def test_arrivals_have_a_known_name() -> None:
    with pytest.raises(ValueError, match="'bursts' is not one of poisson, fixed"):
        Load(rate=1, arrivals="bursts")


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("concurrency", [1, 3, 32])
def test_shares_add_up(concurrency: int, parts: int) -> None:
    shares = [Load(concurrency=concurrency).share(part, parts) for part in range(parts)]
    sizes = [share.concurrency if share else 0 for share in shares]
    assert sum(sizes) == concurrency
    assert max(sizes) - min(sizes) <= 1
    rates = [share.rate for part in range(parts) if (share := Load(rate=90.0).share(part, parts))]
    assert sum(rates) == pytest.approx(90)


def test_labels_name_the_load() -> None:
    assert Load(concurrency=8).label == "8"
    assert Load(rate=250).label == "250/s"


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_fixed_arrivals_are_evenly_spaced_over_all_processes(parts: int) -> None:
    load = Load(rate=100, arrivals="fixed")
    times = [arrival_times(load, 1.0, part=part, parts=parts, seed=0) for part in range(parts)]
    np.testing.assert_allclose(np.sort(np.concatenate(times)), np.arange(100) / 100)


@pytest.mark.parametrize("parts", [1, 4])
def test_poisson_arrivals_have_the_rate_and_the_spread(parts: int) -> None:
    load = Load(rate=1000)
    times = [arrival_times(load, 20.0, part=part, parts=parts, seed=3) for part in range(parts)]
    merged = np.sort(np.concatenate(times))
    assert merged[0] >= 0
    assert merged[-1] < 20
    # Six standard deviations of a Poisson number.
    assert abs(merged.size - 20_000) < 6 * np.sqrt(20_000)
    gaps = np.diff(merged)
    # Exponential gaps scatter as much as they last; even ones would not.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_arrivals_repeat_with_the_seed_only() -> None:
    load = Load(rate=50)
    first, again, other = (
        arrival_times(load, 2.0, part=0, parts=1, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_few_arrivals_still_reach_the_end() -> None:
    counts = [
        arrival_times(Load(rate=0.5), 4.0, part=0, parts=1, seed=seed).size for seed in range(400)
    ]
    assert np.mean(counts) == pytest.approx(2.0, abs=0.3)
    assert min(counts) == 0
