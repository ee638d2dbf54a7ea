"""Whether a request may enter the queue: one pure decision, taken before its rows are kept."""

from gatefuse.batching.batcher import Limits
from gatefuse.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    NoReplica,
    QueueFull,
    TooManyRequests,
)


def admit(
    *,
    rows: int,
    limits: Limits,
    queued_rows: int,
    remaining_s: float,
    ready: bool,
    draining: bool,
    level: int = 0,
    queued_requests: int = 0,
) -> None:
    """Returns when `rows` rows may be queued, raises the answer otherwise.

    `queued_requests` are those that wait at the request's priority level; they matter where its policy has a limit.

    Raises:
        Draining: the service is shutting down.
        InvalidRequest: more rows than the queue could ever hold.
        DeadlineExceeded: nothing of the deadline is left.
        NoReplica: no worker is ready for the model.
        QueueFull: the queue has no room for these rows now.
        TooManyRequests: it has as many requests as it may.
    """
    if draining:
        raise Draining
    if rows > limits.max_queue_rows:
        raise InvalidRequest(
            "size", f"{rows} rows exceed the limit of {limits.max_queue_rows} rows a request"
        )
    if remaining_s <= 0:
        raise DeadlineExceeded
    if not ready:
        raise NoReplica("no worker is ready for the model")
    if queued_rows + rows > limits.max_queue_rows:
        raise QueueFull(f"the queue of the model is full (limit: {limits.max_queue_rows} rows)")
    most = limits.policy_of(level).max_queue_size
    if most and queued_requests >= most:
        raise TooManyRequests(f"the queue of the model is full (limit: {most} requests)")
