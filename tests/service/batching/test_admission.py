"""Whether a request may enter the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gatefuse.batching.admission import admit
from gatefuse.batching.batcher import Limits
from gatefuse.batching.queue_policy import QueuePolicy
from gatefuse.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    NoReplica,
    QueueFull,
    ServiceError,
    TooManyRequests,
)

LIMITS = Limits(max_batch_rows=8, max_queue_rows=20)
FEW = replace(LIMITS, policy=QueuePolicy(max_queue_size=3))
FEW_OF_TWO = replace(LIMITS, level_policies={2: QueuePolicy(max_queue_size=3)})
FINE = {"rows": 5, "limits": LIMITS, "queued_rows": 15, "remaining_s": 1e-6, "ready": True}


def _admit(**changes: Any) -> None:
    admit(**{**FINE, "draining": False, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rows": 20, "queued_rows": 0},
        {"rows": 1, "queued_rows": 19},
        {"limits": FEW, "queued_requests": 2},
        {"queued_requests": 10**6},
        {"limits": FEW_OF_TWO, "level": 1, "queued_requests": 3},
    ],
    ids=[
        "last_rows_of_the_queue",
        "whole_queue_at_once",
        "one_row",
        "last_request",
        "any_number",
        "another_level",
    ],
)
def test_rows_up_to_the_queues_limit_are_admitted(changes: dict[str, Any]) -> None:
    _admit(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"draining": True}, Draining, "draining"),
        ({"rows": 21, "queued_rows": 0}, InvalidRequest, "size"),
        ({"remaining_s": 0.0}, DeadlineExceeded, "deadline"),
        ({"remaining_s": -5.0}, DeadlineExceeded, "deadline"),
        ({"ready": False}, NoReplica, "no_replica"),
        ({"queued_rows": 16}, QueueFull, "queue_full"),
        ({"limits": FEW, "queued_requests": 3}, TooManyRequests, "limit"),
        ({"limits": FEW_OF_TWO, "level": 2, "queued_requests": 3}, TooManyRequests, "limit"),
    ],
    ids=["draining", "never_fits", "no_time_left", "late", "no_worker", "full", "many", "level"],
)
def test_one_fault_is_one_answer(
    changes: dict[str, Any], error: type[ServiceError], reason: str
) -> None:
    with pytest.raises(error) as caught:
        _admit(**changes)
    assert caught.value.reason == reason


def test_a_request_that_could_never_fit_is_told_the_limit() -> None:
    with pytest.raises(InvalidRequest, match=r"^21 rows exceed the limit of 20 rows a request$"):
        _admit(rows=21)


def test_a_draining_server_says_nothing_else() -> None:
    with pytest.raises(Draining):
        _admit(draining=True, rows=99, remaining_s=-1.0, ready=False)
