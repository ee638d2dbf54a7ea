"""Which endpoint takes the next attempt, and what follows from a failed one: pure decisions, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gatefuse.transport.retry import Failure, RetryPolicy, wait_s

# An endpoint that did not answer is left alone for so long, twice as long each time, before a call tries it again.
FIRST_REST_S = 0.5
LONGEST_REST_S = 10.0


class Balancer:
    """Round robin over the endpoints that are ready, as far as the calls so far tell.

    An endpoint rests after a failure that says that it cannot answer now; the first call after the rest tries it, and
    an answer makes it ready again. Not safe for threads: the caller holds a lock.
    """

    def __init__(self, count: int) -> None:
        """``count`` endpoints, numbered from 0, all ready."""
        self._next = 0
        self._rest_until_s = [float("-inf")] * count
        self._failures = [0] * count

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        return f"Balancer(next={self._next}, failures={self._failures})"

    def pick(self, now_s: float, tried: Collection[int] = ()) -> int | None:
        """Returns the next endpoint: of those not in ``tried`` the next ready one, else the one whose rest ends first.

        None if all are in ``tried``.
        """
        count = len(self._rest_until_s)
        order = [(self._next + step) % count for step in range(count)]
        left = [endpoint for endpoint in order if endpoint not in tried]
        if not left:
            return None
        # min takes the first of equals: the next in turn.
        chosen = min(left, key=lambda endpoint: max(self._rest_until_s[endpoint], now_s))
        self._next = (chosen + 1) % count
        return chosen

    def succeeded(self, endpoint: int) -> None:
        """An answer came: whatever it was before, the endpoint is ready."""
        self._failures[endpoint] = 0
        self._rest_until_s[endpoint] = float("-inf")

    def failed(self, endpoint: int, failure: Failure, now_s: float) -> None:
        """Lets the endpoint rest, if the failure says that it cannot answer now."""
        if not failure.may_pass:
            return
        self._failures[endpoint] += 1
        doublings = min(self._failures[endpoint] - 1, 16)
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2**doublings)
        if failure.pushback_s is not None:
            rest_s = failure.pushback_s
        self._rest_until_s[endpoint] = now_s + rest_s


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Where a call goes next, and the seconds to wait before."""

    endpoint: int
    wait_s: float


class Attempts:
    """The attempts of one call: every endpoint once, then a wait, then every endpoint again."""

    def __init__(
        self, balancer: Balancer, policy: RetryPolicy, deadline_s: float, dice: Callable[[], float]
    ) -> None:
        """``deadline_s`` is on the clock of ``now_s`` below; ``dice`` gives numbers from 0 to 1."""
        self._balancer = balancer
        self._policy = policy
        self._deadline_s = deadline_s
        self._dice = dice
        self._tried: set[int] = set()
        self._rounds = 0

    def after(self, endpoint: int, failure: Failure, now_s: float) -> NextAttempt | None:
        """Returns the next attempt after one that failed; None if the failure is the call's answer.

        It is if another attempt would not help, all are used up, or the wait would outlast the deadline.
        """
        self._balancer.failed(endpoint, failure, now_s)
        if not failure.may_pass or now_s >= self._deadline_s:
            return None
        self._tried.add(endpoint)
        elsewhere = self._balancer.pick(now_s, self._tried)
        if elsewhere is not None:
            return NextAttempt(elsewhere, 0.0)
        self._tried.clear()
        self._rounds += 1
        if self._rounds >= self._policy.max_attempts:
            return None
        wait = wait_s(self._policy, self._rounds, failure.pushback_s, self._dice())
        if now_s + wait >= self._deadline_s:
            return None
        again = self._balancer.pick(now_s + wait)
        assert again is not None, "a balancer has at least one endpoint"
        return NextAttempt(again, wait)
