"""Which endpoint takes the next attempt, and what follows from a failed one: pure decisions, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gatefuse.client.transport.retry import Failure, RetryPolicy, backoff_s

# An endpoint that did not answer is left alone for so long, twice as long each time, before a call tries it again.
FIRST_REST_S = 0.5
LONGEST_REST_S = 10.0


class Balancer:
    """Round robin over the endpoints that are ready, as far as the calls so far tell.

    An endpoint rests after a failure that says that it cannot answer now, and after a call that it let wait until the
    deadline; the first call after the rest tries it, and an answer makes it ready again. Not safe for threads: the
    caller holds a lock.
    """

    def __init__(self, count: int) -> None:
        """``count`` endpoints, numbered from 0, all ready."""
        self._next = 0
        self._rest_until_s = [float("-inf")] * count
        self._failures = [0] * count

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        return f"Balancer(next={self._next}, failures={self._failures})"

    def pick(self, now_s: float) -> int:
        """Returns the next endpoint that is ready; if none is, the one whose rest ends first."""
        return self._pick(range(len(self._failures)), now_s)

    def pick_other(self, now_s: float, tried: Collection[int]) -> int | None:
        """Returns the next endpoint as ``pick`` does, of those not in ``tried``; None if all are."""
        left = [endpoint for endpoint in range(len(self._failures)) if endpoint not in tried]
        return self._pick(left, now_s) if left else None

    def _pick(self, among: Sequence[int], now_s: float) -> int:
        count = len(self._failures)
        in_turn = sorted(among, key=lambda endpoint: (endpoint - self._next) % count)
        # min takes the first of equals: the next in turn.
        chosen = min(in_turn, key=lambda endpoint: max(self._rest_until_s[endpoint], now_s))
        self._next = (chosen + 1) % count
        return chosen

    def succeeded(self, endpoint: int) -> None:
        """An answer came: whatever it was before, the endpoint is ready."""
        self._failures[endpoint] = 0
        self._rest_until_s[endpoint] = float("-inf")

    def failed(self, endpoint: int, failure: Failure, now_s: float) -> None:
        """Lets the endpoint rest, if it did not answer or said that it cannot now."""
        if not failure.rests:
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
        self._may_pass = False  # some endpoint of this round may answer later

    def after(self, endpoint: int, failure: Failure, now_s: float) -> NextAttempt | None:
        """Returns the next attempt after one that failed; None if the failure is the call's answer.

        It is if another attempt would not help, all are used up, or the wait would outlast the deadline.
        """
        self._balancer.failed(endpoint, failure, now_s)
        if not failure.others_may_answer or now_s >= self._deadline_s:
            return None
        self._tried.add(endpoint)
        self._may_pass |= failure.may_pass
        elsewhere = self._balancer.pick_other(now_s, self._tried)
        if elsewhere is not None:
            return NextAttempt(elsewhere, 0.0)
        if not self._may_pass:
            return None
        return self._again(failure, now_s)

    def _again(self, failure: Failure, now_s: float) -> NextAttempt | None:
        """The first attempt of the next round."""
        self._tried.clear()
        self._may_pass = False
        self._rounds += 1
        if self._policy.max_rounds is not None and self._rounds >= self._policy.max_rounds:
            return None
        wait_s = backoff_s(self._policy, self._rounds, failure.pushback_s, self._dice())
        if now_s + wait_s >= self._deadline_s:
            return None
        return NextAttempt(self._balancer.pick(now_s + wait_s), wait_s)
