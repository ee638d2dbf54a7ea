"""Who waits before whom, and for how long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatefuse.batching.queue_policy import Priorities, QueuePolicy


@pytest.mark.parametrize(("asked", "level"), [(0, 2), (1, 1), (3, 3), (4, 2), (2**63, 2)])
def test_a_level_that_is_not_there_is_the_default(asked: int, level: int) -> None:
    assert Priorities(levels=3, default_level=2).level(asked) == level


def test_without_levels_all_are_alike() -> None:
    assert {Priorities().level(asked) for asked in (0, 1, 7)} == {0}


@pytest.mark.parametrize(
    ("policy", "asked_us", "timeout_s"),
    [
        (QueuePolicy(), 0, math.inf),
        (QueuePolicy(), 1500, 0.0015),
        (QueuePolicy(default_timeout_s=2.0), 0, 2.0),
        (QueuePolicy(default_timeout_s=2.0), 1_000_000, 1.0),
        (QueuePolicy(default_timeout_s=2.0), 3_000_000, 2.0),
        (QueuePolicy(default_timeout_s=2.0, allow_timeout_override=False), 1_000_000, 2.0),
        (QueuePolicy(allow_timeout_override=False), 1_000_000, math.inf),
    ],
    ids=["none", "own", "default", "shorter", "longer", "not_allowed", "not_allowed_no_default"],
)
def test_how_long_a_request_may_wait(policy: QueuePolicy, asked_us: int, timeout_s: float) -> None:
    assert policy.timeout_s(asked_us) == timeout_s


@given(st.floats(0, 1e6), st.integers(0, 2**63 - 1), st.booleans())
def test_nobody_waits_longer_than_the_default(default_s: float, asked_us: int, allow: bool) -> None:
    timeout_s = QueuePolicy(default_timeout_s=default_s, allow_timeout_override=allow).timeout_s(
        asked_us
    )
    assert timeout_s > 0
    assert timeout_s <= (default_s or math.inf)
