"""The largest delay of a timer within ten seconds; a loop that is held up shows it."""

from __future__ import annotations

import asyncio
import time

import pytest

from gatefuse.metrics.loop_lag import SAMPLE_S, Largest, LoopLag


def test_the_largest_of_the_last_ten_seconds() -> None:
    largest = Largest()
    assert largest.value == 0
    for now_s, value, expected in (
        (100.0, 0.2, 0.2),
        (100.9, 0.1, 0.2),
        (101.0, 0.05, 0.2),
        (109.9, 0.01, 0.2),
        (110.0, 0.01, 0.05),
        (111.0, 0.01, 0.01),
        (500.0, 0.0, 0.0),
    ):
        largest.note(now_s, value)
        assert largest.value == expected, now_s


@pytest.mark.asyncio
async def test_a_blocked_loop_is_seen() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    await asyncio.sleep(3 * SAMPLE_S)
    time.sleep(0.15)  # noqa: ASYNC251 - what a handler must not do
    await asyncio.sleep(3 * SAMPLE_S)
    assert lag.largest_s() >= 0.15 - SAMPLE_S
    lag.stop()
