"""Whether a failed call is worth another attempt, and how long to wait for it: pure decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import grpc

from gatefuse.protocol_words import PUSHBACK_KEY

# What gRPC itself says of a deadline that passed here; servers of ours have texts of their own.
OWN_DEADLINE = "Deadline Exceeded"
# The second is of a call whose message it was still writing.
_OWN_DEADLINES = (OWN_DEADLINE, f"Stream removed ({OWN_DEADLINE})")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a call that changes nothing is tried, and the waits between: each ``factor`` times the one before.

    A call whose server is away for long asks each endpoint about once in ``longest_wait_s``. It fails with the last
    refusal where the next wait would outlast its deadline.

    Attributes:
        max_rounds: Rounds over the endpoints, the first included: 1 asks each once and never waits, None goes on while
            the deadline allows.
        first_wait_s: The wait after the first round, in seconds.
        longest_wait_s: No wait is longer, unless the server asks for it.
        factor: Growth of the wait from round to round.
    """

    max_rounds: int | None = None
    first_wait_s: float = 0.1
    longest_wait_s: float = 2.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        """Raises ValueError for a policy that cannot be kept."""
        if self.max_rounds is not None and self.max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, or None, not {self.max_rounds}")
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise ValueError("waits must be positive, and the first no longer than the longest")
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, not {self.factor}")


# Each endpoint once.
NO_RETRY = RetryPolicy(max_rounds=1)
# For who sits before a terminal: a wrong address is told within about a second.
SHORT_RETRY = RetryPolicy(max_rounds=5)


def checked_policy(retry: Any) -> RetryPolicy:
    """Returns the policy that a client is given, None for the usual one. Raises TypeError for anything else."""
    if retry is None:
        return RetryPolicy()
    if not isinstance(retry, RetryPolicy):
        raise TypeError(f"retry must be a RetryPolicy, such as gatefuse.NO_RETRY, not {retry!r}")
    return retry


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed.

    Attributes:
        code: The gRPC status.
        pushback_s: The seconds after which the server wants to be asked again; negative for never, None if it does
            not say.
        is_silence: The deadline passed here, and nothing was heard of the server.
    """

    code: grpc.StatusCode
    pushback_s: float | None = None
    is_silence: bool = False

    @classmethod
    def of(cls, error: Any) -> Failure:
        """Reads what grpc or grpc.aio raised."""
        code = error.code()
        is_silence = code is grpc.StatusCode.DEADLINE_EXCEEDED and (
            (error.details() or "").startswith(_OWN_DEADLINES)
        )
        return cls(code, read_pushback_s(error.trailing_metadata()), is_silence)

    @classmethod
    def of_call(cls, error: Any) -> Failure:
        """Reads the same of a call that nobody here cancelled: then a server did that was about to go."""
        failure = cls.of(error)
        if failure.code is not grpc.StatusCode.CANCELLED:
            return failure
        return replace(failure, code=grpc.StatusCode.UNAVAILABLE)

    @property
    def is_refusal(self) -> bool:
        """Whether the server itself refused: it has not begun with the request, and will not."""
        return self.pushback_s is not None

    @property
    def is_final(self) -> bool:
        """Whether the server says that it will answer the same for long."""
        return self.pushback_s is not None and self.pushback_s < 0

    @property
    def may_pass(self) -> bool:
        """Whether the same call may be answered by the same server, later."""
        return self.others_may_answer and not self.is_final

    @property
    def rests(self) -> bool:
        """Whether the next calls had better go to another server."""
        return self.may_pass or self.is_silence

    @property
    def others_may_answer(self) -> bool:
        """Whether the same call may be answered by another server, now.

        RESOURCE_EXHAUSTED is also what a message above the size limit gets, whenever it comes and wherever: only a
        server that says when to come back means a shortage of its own.
        """
        if self.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self.pushback_s is not None and not self.is_final
        return self.code is grpc.StatusCode.UNAVAILABLE


# Of a request on a stream that outlasted its deadline, with nothing heard on the stream since it was sent.
SILENCE = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, is_silence=True)


def read_pushback_s(metadata: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """Returns the server's push-back out of trailing metadata.

    Negative where it is no number: gRPC's own clients do not retry then either.
    """
    for key, value in metadata or ():
        if key == PUSHBACK_KEY:
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            try:
                return int(text) / 1000
            except ValueError:
                return -1.0
    return None


def backoff_s(policy: RetryPolicy, rounds: int, pushback_s: float | None, dice: float) -> float:
    """Returns the seconds to wait after ``rounds`` rounds have failed: our own wait, or the server's if it is longer.

    Args:
        policy: The caller's.
        rounds: 1 or more.
        pushback_s: The server's wish; None or negative if it has none.
        dice: 0 to 1, at random, so that callers who failed together do not come back together: our own wait is
            shortened by up to half, the server's, which is a minimum, prolonged by up to half.
    """
    own_s = _grown_s(policy, rounds - 1) * (1 - dice / 2)
    return max(own_s, (pushback_s or 0.0) * (1 + dice / 2))


def _grown_s(policy: RetryPolicy, times: int) -> float:
    try:
        return min(policy.longest_wait_s, policy.first_wait_s * policy.factor**times)
    except OverflowError:
        return policy.longest_wait_s
