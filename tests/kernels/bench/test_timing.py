"""How long is measured, and what a set of times becomes."""

from __future__ import annotations

import pytest

from gatefuse_kernels.bench.results import Spread
from gatefuse_kernels.bench.timing import Pace, spread


@pytest.mark.parametrize(
    ("round_s", "rounds"),
    [(0.0, 200), (0.001, 200), (0.02, 100), (0.1, 20), (0.5, 15), (10.0, 15)],
)
def test_long_rounds_are_fewer(round_s: float, rounds: int) -> None:
    assert Pace(rounds=200, seconds=2.0, least=15).rounds_for(round_s) == rounds


def test_no_more_rounds_than_asked_for() -> None:
    assert Pace(rounds=10, seconds=2.0, least=15).rounds_for(0.001) == 10


def test_spread() -> None:
    assert spread([float(time) for time in range(11)]) == Spread(5.0, 1.0, 9.0, 11)
    assert spread([3.0, 3.0]) == Spread(3.0, 3.0, 3.0, 2)
