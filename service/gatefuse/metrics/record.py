"""Typed methods that count what happened: the call sites' only way to the families."""

from collections.abc import Callable, Mapping

from gatefuse.batching.batcher import Trigger
from gatefuse.metrics import families, series
from gatefuse.metrics.buffers import put, watch


def declare_frontend(process: str, event_loop_lag_s: Callable[[], float]) -> None:
    """Creates the series whose labels are known at start, so that rates begin at zero.

    `process` is the frontend's name, the same for every process in its place.
    """
    for method in families.METHODS:
        codes = families.CODES if method in families.INFERENCE_METHODS else families.COMMON_CODES
        for code in codes:
            series.requests(method, code)
    for method in families.TIMED_METHODS:
        for outcome in families.OUTCOMES:
            series.durations(method, outcome)
    for method in families.INFERENCE_METHODS:
        for reason in families.SHED_REASONS:
            series.shed(method, reason)
    for hop in families.HOPS:
        series.hops(hop)
    for lookup, labels in (
        (series.invalid, families.INVALID_REASONS),
        (series.cancelled, families.CANCEL_PHASES),
        (series.batches, tuple(Trigger)),
    ):
        for label in labels:
            lookup(label)
    for outcome in families.CALL_OUTCOMES:
        series.calls(outcome)
    set_draining(process, draining=False)
    watch(families.event_loop_lag, (process,), event_loop_lag_s)


class RpcMetrics:
    """Counts one method's RPCs."""

    def __init__(self, method: str) -> None:
        """`method` is one of families.METHODS."""
        self._method = method
        self._timed_as = _group(method)
        self._in_flight = 0
        self._ok = series.requests(method, "OK")
        self._ok_duration = series.durations(self._timed_as, "ok")
        watch(families.requests_in_flight, (method,), lambda: self._in_flight)

    def started(self) -> None:
        """A handler began."""
        self._in_flight += 1

    def finished(self, code: str, outcome: str, duration_s: float) -> None:
        """The handler ended with a status `code`; `outcome` is one of families.OUTCOMES."""
        self._in_flight -= 1
        if code == "OK":
            self._ok.inc()
            self._ok_duration.observe(duration_s)
        else:
            series.requests(self._method, code).inc()
            series.durations(self._timed_as, outcome).observe(duration_s)


def _group(method: str) -> str:
    """What a method is called where only inference is told apart: one of families.TIMED_METHODS."""
    return method if method in families.INFERENCE_METHODS else "other"


def watch_queue(model: str, queued_rows: Callable[[], int]) -> None:
    """Exports how many rows of a model wait, from now on."""
    watch(families.queue_rows, (model,), queued_rows)


def call_ended_badly(outcome: str, call_s: float) -> None:
    """A batch did not come back with rows; `outcome` is one of families.CALL_OUTCOMES."""
    series.calls(outcome).observe(call_s)


def shed(method: str, reason: str) -> None:
    """A method's request was refused, or given up, for a reason that passes: one of families.SHED_REASONS."""
    series.shed(_group(method), reason).inc()


def invalid(reason: str) -> None:
    """A request was refused by validation."""
    series.invalid(reason).inc()


def caller_left(phase: str) -> None:
    """A caller cancelled; `phase` is one of families.CANCEL_PHASES."""
    series.cancelled(phase).inc()


def set_replicas(by_state: dict[str, int]) -> None:
    """How many workers are in each of families.REPLICA_STATES; the others are set to zero."""
    for state in families.REPLICA_STATES:
        put(families.replicas, (state,), by_state.get(state, 0))


def declare_driver(workers: int) -> None:
    """Creates the driver's series: so many workers are about to start."""
    set_replicas({"starting": workers})
    for cause in families.RESTART_CAUSES:
        families.replica_restarts.labels(cause)
    set_draining("driver", draining=False)


def replica_restarted(cause: str) -> None:
    """A worker was replaced by a new process; `cause` is one of families.RESTART_CAUSES."""
    families.replica_restarts.labels(cause).inc()


def set_draining(process: str, *, draining: bool) -> None:
    """Whether a process takes nothing new any more."""
    put(families.drain_state, (process,), draining)


def describe_build(version: str, python: str, grpc: str) -> None:
    """Sets the build gauge."""
    put(families.build_info, (version, python, grpc), 1)


def describe_audit(checks: Mapping[str, tuple[float, float]]) -> None:
    """Sets the audit gauges: ratio and time, in seconds since 1970, of each check that was made."""
    for check, (ratio, timestamp_s) in checks.items():
        put(families.audit_ratio, (check,), ratio)
        put(families.audit_timestamp, (check,), timestamp_s)
