"""Which endpoint is next, and what follows from a failure: no clock but the tests' own."""

from __future__ import annotations

from collections import Counter

import grpc
from hypothesis import given
from hypothesis import strategies as st

from gatefuse.client.transport.balancer import (
    FIRST_REST_S,
    LONGEST_REST_S,
    Attempts,
    Balancer,
    NextAttempt,
)
from gatefuse.client.transport.retry import NO_RETRY, Failure, RetryPolicy

AWAY = Failure(grpc.StatusCode.UNAVAILABLE)
NEVER = Failure(grpc.StatusCode.UNAVAILABLE, -1.0)
WRONG = Failure(grpc.StatusCode.INVALID_ARGUMENT)
POLICY = RetryPolicy(max_rounds=3, first_wait_s=0.1, longest_wait_s=1.0)


def _attempts(
    balancer: Balancer, deadline_s: float = 100.0, policy: RetryPolicy = POLICY
) -> Attempts:
    return Attempts(balancer, policy, deadline_s, lambda: 0.0)


def test_ready_endpoints_take_turns() -> None:
    balancer = Balancer(3)
    assert [balancer.pick(0.0) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_endpoint_that_failed_rests_and_is_tried_again() -> None:
    balancer = Balancer(2)
    balancer.failed(0, AWAY, now_s=10.0)
    just_before_s = 10.0 + FIRST_REST_S - 1e-6
    assert [balancer.pick(just_before_s) for _ in range(3)] == [1, 1, 1]
    assert {balancer.pick(10.0 + FIRST_REST_S) for _ in range(2)} == {0, 1}


def test_rests_grow_until_an_answer_comes() -> None:
    balancer = Balancer(2)
    for _ in range(3):
        balancer.failed(0, AWAY, now_s=0.0)
    assert balancer.pick(4 * FIRST_REST_S - 1e-6) == 1
    assert balancer.pick(4 * FIRST_REST_S) == 0
    for _ in range(100):
        balancer.failed(0, AWAY, now_s=0.0)
    assert {balancer.pick(LONGEST_REST_S) for _ in range(2)} == {0, 1}
    balancer.succeeded(0)
    balancer.failed(0, AWAY, now_s=0.0)
    assert {balancer.pick(FIRST_REST_S) for _ in range(2)} == {0, 1}


def test_servers_push_back_is_the_rest() -> None:
    balancer = Balancer(2)
    balancer.failed(0, Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, 3.0), now_s=0.0)
    assert [balancer.pick(2.9) for _ in range(2)] == [1, 1]
    assert {balancer.pick(3.0) for _ in range(2)} == {0, 1}


def test_a_server_that_lets_calls_wait_rests() -> None:
    balancer = Balancer(2)
    silence = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, is_silence=True)
    balancer.failed(0, silence, now_s=0.0)
    balancer.failed(0, silence, now_s=0.0)
    assert [balancer.pick(2 * FIRST_REST_S - 1e-6) for _ in range(2)] == [1, 1]
    balancer.failed(1, Failure(grpc.StatusCode.DEADLINE_EXCEEDED), now_s=0.0)
    assert balancer.pick(0.0) == 1, "it answered"


def test_wrong_request_says_nothing_about_the_endpoint() -> None:
    balancer = Balancer(2)
    balancer.failed(0, WRONG, now_s=0.0)
    assert [balancer.pick(0.0) for _ in range(2)] == [0, 1]


def test_all_rest_then_the_one_whose_rest_ends_first() -> None:
    balancer = Balancer(3)
    for endpoint, pushback_s in enumerate((5.0, 2.0, 3.0)):
        balancer.failed(endpoint, Failure(grpc.StatusCode.UNAVAILABLE, pushback_s), now_s=0.0)
    assert balancer.pick(0.0) == 1
    assert balancer.pick_other(0.0, tried={1}) == 2
    assert balancer.pick_other(0.0, tried={0, 1, 2}) is None


@given(count=st.integers(1, 7), down=st.sets(st.integers(0, 6)), calls=st.integers(0, 60))
def test_load_is_even_over_the_endpoints_that_are_ready(
    count: int, down: set[int], calls: int
) -> None:
    balancer = Balancer(count)
    ready = set(range(count)) - down
    for endpoint in set(range(count)) - ready:
        balancer.failed(endpoint, AWAY, now_s=0.0)
    picked = Counter(balancer.pick(0.0) for _ in range(calls))
    if ready:
        assert set(picked) <= ready
        counts = [picked[endpoint] for endpoint in ready]
        assert max(counts) - min(counts) <= 1


def test_every_endpoint_is_tried_before_a_wait() -> None:
    balancer = Balancer(3)
    attempts = _attempts(balancer)
    first = balancer.pick(0.0)
    assert first == 0
    assert attempts.after(0, AWAY, 0.0) == NextAttempt(1, 0.0)
    assert attempts.after(1, AWAY, 0.0) == NextAttempt(2, 0.0)
    following = attempts.after(2, AWAY, 0.0)
    assert following is not None
    assert following.wait_s == 0.1


def test_attempts_are_used_up() -> None:
    attempts = _attempts(Balancer(1))
    waits = [attempts.after(0, AWAY, 0.0) for _ in range(3)]
    assert waits == [NextAttempt(0, 0.1), NextAttempt(0, 0.2), None]


def test_no_retry_asks_each_endpoint_once() -> None:
    attempts = _attempts(Balancer(2), policy=NO_RETRY)
    assert attempts.after(0, AWAY, 0.0) == NextAttempt(1, 0.0)
    assert attempts.after(1, AWAY, 0.0) is None


def test_failure_that_will_not_pass_is_the_answer() -> None:
    attempts = _attempts(Balancer(2))
    assert attempts.after(0, WRONG, 0.0) is None
    assert _attempts(Balancer(1)).after(0, NEVER, 0.0) is None


def test_what_one_endpoint_will_never_answer_is_asked_of_the_others_once() -> None:
    attempts = _attempts(Balancer(2))
    assert attempts.after(0, NEVER, 0.0) == NextAttempt(1, 0.0)
    assert attempts.after(1, NEVER, 0.0) is None
    attempts = _attempts(Balancer(2))
    assert attempts.after(1, AWAY, 0.0) == NextAttempt(0, 0.0)
    assert attempts.after(0, NEVER, 0.0) is not None, "the other one may come back"


def test_attempts_go_on_until_the_deadline() -> None:
    attempts = _attempts(Balancer(1), deadline_s=60.0, policy=RetryPolicy(longest_wait_s=2.0))
    now_s, waits = 0.0, []
    while (following := attempts.after(0, AWAY, now_s)) is not None:
        waits.append(following.wait_s)
        now_s += following.wait_s
    assert 58.0 < now_s < 60.0
    assert len(waits) < 40
    assert max(waits) == 2.0


def test_no_wait_outlasts_the_deadline() -> None:
    shed = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.5)
    assert _attempts(Balancer(1), deadline_s=10.5).after(0, shed, 10.0) is None
    assert _attempts(Balancer(1), deadline_s=10.51).after(0, shed, 10.0) == NextAttempt(0, 0.5)
    assert _attempts(Balancer(2), deadline_s=10.0).after(0, AWAY, 10.0) is None
