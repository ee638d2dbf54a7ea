"""Typed methods that count what happened: the call sites' only way to the families."""

import hashlib
from collections.abc import Callable, Mapping

from gatefuse.batcher import Trigger
from gatefuse.link import DoneMessage, ServedModel
from gatefuse.metrics import families
from gatefuse.metrics.buffers import (
    HistogramBuffer,
    buffered_counter,
    buffered_histogram,
    flush_all,
)
from gatefuse_kernels.ledger import Entry

_requests = buffered_counter(families.requests)
_durations = buffered_histogram(families.request_duration, families.DURATION_BUCKETS_S)
_inferences = buffered_histogram(families.inference_duration, families.DURATION_BUCKETS_S)
_request_rows = buffered_histogram(families.request_rows, families.ROW_BUCKETS)
_queue_waits = buffered_histogram(families.queue_wait, families.SHORT_BUCKETS_S)
_batch_rows = buffered_histogram(families.batch_rows, families.ROW_BUCKETS)
_batch_requests = buffered_histogram(families.batch_requests, families.REQUEST_BUCKETS)
_batches = buffered_counter(families.batches)
_padding = buffered_counter(families.batch_padding_rows)
_calls = buffered_histogram(families.replica_call, families.SHORT_BUCKETS_S)
_overhead = HistogramBuffer(families.replica_overhead, families.SHORT_BUCKETS_S)
_busy = buffered_counter(families.device_busy)
_launches = buffered_counter(families.kernel_launches)
_replays = buffered_counter(families.graph_replays)
_dram = buffered_counter(families.dram_bytes)
_flops = buffered_counter(families.flops)
_hops = buffered_counter(families.transfer_bytes)
_shed = buffered_counter(families.requests_shed)
_invalid = buffered_counter(families.requests_invalid)
_cancelled = buffered_counter(families.cancelled)

# What is read when buffers are flushed, not counted: one entry per gauge.
_gauges: list[Callable[[], None]] = []


def flush() -> None:
    """Writes what was counted since the last flush, and the gauges' values now."""
    flush_all()
    for write in _gauges:
        write()


def declare_frontend() -> None:
    """Creates the series whose labels are known at start, so that rates begin at zero."""
    for method in families.METHODS:
        families.requests_in_flight.labels(method)
        for outcome in families.OUTCOMES:
            _durations(method, outcome)
        _requests(method, "OK")
    for hop in families.HOPS:
        _hops(hop)
    for lookup, labels in (
        (_shed, families.SHED_REASONS),
        (_invalid, families.INVALID_REASONS),
        (_cancelled, families.CANCEL_PHASES),
        (_batches, tuple(Trigger)),
    ):
        for label in labels:
            lookup(label)
    for outcome in families.CALL_OUTCOMES:
        _calls(outcome)


class RpcMetrics:
    """Counts one method's RPCs."""

    def __init__(self, method: str) -> None:
        """`method` is one of families.METHODS."""
        self._method = method
        self._in_flight = 0
        self._gauge = families.requests_in_flight.labels(method)
        self._ok = _requests(method, "OK")
        self._ok_duration = _durations(method, "ok")
        _gauges.append(lambda: self._gauge.set(self._in_flight))

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
            _requests(self._method, code).inc()
            _durations(self._method, outcome).observe(duration_s)


class ModelMetrics:
    """The series of one model, looked up once."""

    def __init__(self, model: ServedModel, queue_capacity_rows: int) -> None:
        """Creates every series whose labels are known from the model."""
        labels = (model.name, model.backend)
        self._labels = labels
        self._duration = _inferences(*labels)
        self._request_rows = _request_rows(*labels)
        self._queue_wait = _queue_waits(*labels)
        self._batch_rows = _batch_rows(*labels)
        self._batch_requests = _batch_requests(*labels)
        self._padding = _padding(*labels)
        self._calls_ok = _calls("ok")
        self._grpc_in = _hops("grpc_in")
        self._grpc_out = _hops("grpc_out")
        families.queue_capacity_rows.labels(model.name).set(queue_capacity_rows)
        _describe(model)

    def accepted(self, rows: int, payload_bytes: int) -> None:
        """A request of `rows` rows entered the queue."""
        self._request_rows.observe(rows)
        self._grpc_in.inc(payload_bytes)

    def answered(self, duration_s: float, payload_bytes: int) -> None:
        """A request got its rows."""
        self._duration.observe(duration_s)
        self._grpc_out.inc(payload_bytes)

    def waited(self, wait_s: float) -> None:
        """A request's first rows were sealed `wait_s` after it was accepted."""
        self._queue_wait.observe(wait_s)

    def sealed(self, rows: int, requests: int, trigger: str) -> None:
        """A batch left for a worker."""
        self._batch_rows.observe(rows)
        self._batch_requests.observe(requests)
        _batches(trigger).inc()

    def computed(
        self, device: str, rows: int, moved: tuple[int, int], done: DoneMessage, call_s: float
    ) -> None:
        """A worker finished a batch of `rows` rows; `moved` are the bytes that travelled there, and back."""
        self._calls_ok.observe(call_s)
        _overhead.observe(max(0.0, call_s - done.inside_s))
        _busy(*self._labels, device).inc(done.device_s)
        if done.padded_rows > rows:
            self._padding.inc(done.padded_rows - rows)
        hops = families.REPLICA_HOPS if device == "cpu" else families.DEVICE_HOPS
        for there, back in hops:
            _hops(there).inc(moved[0])
            _hops(back).inc(moved[1])
        replayed = False
        for entry in done.entries:
            self._count_kernel(entry)
            replayed = replayed or entry.mode == "graph"
        if replayed:
            _replays(*self._labels, str(done.padded_rows)).inc()

    def _count_kernel(self, entry: Entry) -> None:
        _launches(*self._labels, entry.kernel, entry.mode).inc(entry.launches)
        _dram(*self._labels, entry.kernel, "read").inc(entry.read_bytes)
        _dram(*self._labels, entry.kernel, "write").inc(entry.written_bytes)
        _flops(*self._labels, entry.kernel).inc(entry.flops)


def watch_queue(model: str, queued_rows: Callable[[], int]) -> None:
    """Exports how many rows of a model wait, from now on."""
    gauge = families.queue_rows.labels(model)
    _gauges.append(lambda: gauge.set(queued_rows()))


def call_ended_badly(outcome: str, call_s: float) -> None:
    """A batch did not come back with rows; `outcome` is one of families.CALL_OUTCOMES."""
    _calls(outcome).observe(call_s)


def shed(reason: str) -> None:
    """A request was refused before compute."""
    _shed(reason).inc()


def invalid(reason: str) -> None:
    """A request was refused by validation."""
    _invalid(reason).inc()


def caller_left(phase: str) -> None:
    """A caller cancelled; `phase` is one of families.CANCEL_PHASES."""
    _cancelled(phase).inc()


def set_replicas(by_state: dict[str, int]) -> None:
    """How many workers are in each of families.REPLICA_STATES; the others are set to zero."""
    for state in families.REPLICA_STATES:
        families.replicas.labels(state).set(by_state.get(state, 0))


def replica_restarted(cause: str) -> None:
    """A worker was replaced by a new process."""
    families.replica_restarts.labels(cause).inc()


def describe_build(version: str, python: str, grpc: str) -> None:
    """Sets the build gauge."""
    families.build_info.labels(version, python, grpc).set(1)


def describe_audit(checks: Mapping[str, tuple[float, float]]) -> None:
    """Sets the audit gauges: ratio and time, in seconds since 1970, of each check that was made."""
    for check, (ratio, timestamp_s) in checks.items():
        families.audit_ratio.labels(check).set(ratio)
        families.audit_timestamp.labels(check).set(timestamp_s)


def _describe(model: ServedModel) -> None:
    # A short digest: equal weights are seen to be equal, and no path is shown.
    weights = hashlib.sha256(model.weights_id.encode()).hexdigest()[:12] if model.weights_id else ""
    families.model_info.labels(
        model.name,
        model.backend,
        model.dtype,
        str(model.columns),
        str(model.intermediate),
        weights,
    ).set(1)
