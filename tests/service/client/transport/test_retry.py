"""Whether to try again, and when."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.transport.retry import Failure, RetryPolicy, backoff_s, read_pushback_s

Code = grpc.StatusCode
POLICY = RetryPolicy(max_rounds=9, first_wait_s=0.1, longest_wait_s=1.0, factor=3.0)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, None),
        ((), None),
        ((("other", "5"),), None),
        ((("other", "5"), ("grpc-retry-pushback-ms", "250")), 0.25),
        ((("grpc-retry-pushback-ms", b"0"),), 0.0),
        ((("grpc-retry-pushback-ms", "-1"),), -0.001),
        ((("grpc-retry-pushback-ms", "soon"),), -1.0),
        ((("grpc-retry-pushback-ms", b"\xff"),), -1.0),
    ],
)
def test_push_back_is_read(
    metadata: tuple[tuple[str, str | bytes], ...] | None, expected: float | None
) -> None:
    assert read_pushback_s(metadata) == expected


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure(Code.UNAVAILABLE), True),
        (Failure(Code.UNAVAILABLE, 0.0), True),
        (Failure(Code.UNAVAILABLE, -1.0), False),
        (Failure(Code.RESOURCE_EXHAUSTED), False),  # a message above the limit is that too
        (Failure(Code.RESOURCE_EXHAUSTED, 0.05), True),
        (Failure(Code.RESOURCE_EXHAUSTED, -1.0), False),
        *((Failure(code, 0.05), False) for code in Code if code.name[0] in "IDNC"),
    ],
    ids=str,
)
def test_only_what_may_pass_is_tried_again(failure: Failure, expected: bool) -> None:
    assert failure.may_pass is expected


def test_what_one_server_will_never_answer_another_may() -> None:
    assert Failure(Code.UNAVAILABLE, -1.0).others_may_answer
    assert not Failure(Code.RESOURCE_EXHAUSTED, -1.0).others_may_answer
    assert not Failure(Code.NOT_FOUND).others_may_answer


class _Raised:
    """Stands for what grpc raises."""

    def __init__(self, code: Code, details: str) -> None:
        self.code = lambda: code
        self.details = lambda: details
        self.trailing_metadata = lambda: None


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", True),
        (Code.DEADLINE_EXCEEDED, "Stream removed (Deadline Exceeded)", True),
        (Code.DEADLINE_EXCEEDED, "deadline exceeded before the rows were computed", False),
        (Code.UNAVAILABLE, "Deadline Exceeded", False),
    ],
)
def test_silence_is_not_what_a_server_says(code: Code, details: str, expected: bool) -> None:
    failure = Failure.of(_Raised(code, details))
    assert failure.is_silence is expected
    assert not Failure(Code.DEADLINE_EXCEEDED, is_silence=True).may_pass


@pytest.mark.parametrize("retry", [3, 0, "never", False])
@pytest.mark.asyncio
async def test_what_is_no_policy(retry: Any) -> None:
    for kind in (Client, AioClient):
        with pytest.raises(TypeError, match="retry must be a RetryPolicy"):
            kind("localhost:1", retry=retry)


def test_waits_grow_up_to_the_longest() -> None:
    waits = [backoff_s(POLICY, rounds, None, dice=0.0) for rounds in range(1, 6)]
    assert waits == pytest.approx([0.1, 0.3, 0.9, 1.0, 1.0])
    assert backoff_s(POLICY, 10_000, None, dice=0.0) == 1.0
    assert backoff_s(RetryPolicy(factor=1e200), 3, None, dice=0.0) == 2.0


def test_jitter_shortens_our_waits_and_prolongs_the_servers() -> None:
    assert backoff_s(POLICY, 1, None, dice=1.0) == pytest.approx(0.05)
    assert backoff_s(POLICY, 1, 0.2, dice=0.0) == 0.2
    assert backoff_s(POLICY, 1, 0.2, dice=1.0) == pytest.approx(0.3)


def test_the_longer_wait_counts() -> None:
    """A server that wants to be asked soon is not asked as often until the deadline."""
    assert backoff_s(POLICY, 1, 0.0, dice=0.0) == 0.1
    assert backoff_s(POLICY, 5, 0.2, dice=0.0) == 1.0
    assert backoff_s(POLICY, 5, 3.0, dice=0.0) == 3.0
    assert backoff_s(POLICY, 1, -1.0, dice=0.0) == 0.1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_rounds": 0}, "max_rounds"),
        ({"first_wait_s": 0.0}, "waits must be positive"),
        ({"first_wait_s": 3.0}, "no longer than the longest"),
        ({"factor": 0.5}, "factor"),
    ],
)
def test_policies_that_cannot_be_kept_are_refused(values: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RetryPolicy(**values)  # type: ignore[arg-type]
