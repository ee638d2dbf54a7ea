"""What is kept of the last minutes."""

from __future__ import annotations

from gatefuse.status.history import RECENT_STEPS, STEPS, History
from gatefuse.status.samples import Sample, Samples

REQUESTS = "gatefuse_inference_duration_seconds_count"
ENDED = "gatefuse_request_duration_seconds_count"


def _at(requests: int) -> Samples:
    """So many requests were answered."""
    return Samples(
        [
            Sample(REQUESTS, {"model": "m", "backend": "eager"}, requests),
            Sample(ENDED, {"method": "ModelInfer", "outcome": "ok"}, requests),
        ]
    )


def test_one_moment_tells_no_rate() -> None:
    history = History()
    assert history.window is None
    history.add(10.0, _at(5))
    assert (history.window, history.points, history.recent) == (None, (), {})


def test_the_window_grows_to_five_seconds_and_moves_on() -> None:
    history = History()
    covered = []
    for second in range(9):
        history.add(float(second), _at(second * second))
        covered.append(history.window.seconds if history.window else None)
    assert covered == [None, 1, 2, 3, 4, 5, 5, 5, 5]
    assert history.window is not None
    assert history.window.total(REQUESTS) == 64 - 9


def test_the_window_is_one_step_where_steps_are_long() -> None:
    history = History()
    for at_s in (0.0, 30.0, 60.0):
        history.add(at_s, _at(int(at_s)))
    assert history.window is not None
    assert history.window.seconds == 30


def test_each_step_is_a_point_with_its_age() -> None:
    history = History()
    for at_s, requests in ((0.0, 0), (1.0, 3), (3.0, 13)):
        history.add(at_s, _at(requests))
    assert [(point.age_s, point.ok_per_s) for point in history.points] == [(2.0, 3.0), (0.0, 5.0)]
    assert history.recent == {("m", "eager"): [3.0, 5.0]}


def test_a_model_that_came_later_did_nothing_before() -> None:
    history = History()
    history.add(0.0, Samples())
    history.add(1.0, Samples())
    history.add(2.0, _at(4))
    assert history.recent == {("m", "eager"): [0.0, 4.0]}


def test_it_keeps_no_more_than_it_shows() -> None:
    history = History()
    for second in range(STEPS + 20):
        history.add(float(second), _at(second))
    assert len(history.points) == STEPS
    assert history.points[0].age_s == STEPS - 1
    assert len(history.recent["m", "eager"]) == RECENT_STEPS


def test_it_can_forget() -> None:
    history = History()
    history.add(0.0, _at(0))
    history.add(1.0, _at(1))
    history.clear()
    assert (history.window, history.points, history.recent) == (None, (), {})
