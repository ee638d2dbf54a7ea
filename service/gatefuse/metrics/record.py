"""Typed methods that count what happened: the call sites' only way to the families."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gatefuse.batcher import Trigger
from gatefuse.link import ServedModel
from gatefuse.metrics import families
from gatefuse_kernels.ledger import Entry

_hop = {
    hop: families.transfer_bytes.labels(hop)
    for hop in ("grpc_in", "grpc_out", "to_replica", "from_replica", "h2d", "d2h")
}
# Finding a child by its labels costs more than counting in it.
_request = lru_cache(maxsize=None)(families.requests.labels)
_duration = lru_cache(maxsize=None)(families.request_duration.labels)
_trigger = lru_cache(maxsize=None)(families.batches.labels)
_call = lru_cache(maxsize=None)(families.replica_call.labels)
_busy = lru_cache(maxsize=None)(families.device_busy.labels)
_replays = lru_cache(maxsize=None)(families.graph_replays.labels)
_launches = lru_cache(maxsize=None)(families.kernel_launches.labels)
_dram = lru_cache(maxsize=None)(families.dram_bytes.labels)
_flops = lru_cache(maxsize=None)(families.flops.labels)


def declare_frontend() -> None:
    """Creates the series whose labels are known at start, so that rates begin at zero."""
    for method in families.METHODS:
        families.requests_in_flight.labels(method)
        for outcome in families.OUTCOMES:
            families.request_duration.labels(method, outcome)
        families.requests.labels(method, "OK")
    for family, labels in (
        (families.requests_shed, families.SHED_REASONS),
        (families.requests_invalid, families.INVALID_REASONS),
        (families.cancelled, families.CANCEL_PHASES),
        (families.batches, tuple(Trigger)),
        (families.replica_call, families.CALL_OUTCOMES),
    ):
        for label in labels:
            family.labels(label)


class RpcMetrics:
    """Counts one method's RPCs."""

    def __init__(self, method: str) -> None:
        """`method` is one of families.METHODS."""
        self._method = method
        self._in_flight = families.requests_in_flight.labels(method)

    def started(self) -> None:
        """A handler began."""
        self._in_flight.inc()

    def finished(self, code: str, outcome: str, duration_s: float) -> None:
        """The handler ended with a status `code`; `outcome` is one of families.OUTCOMES."""
        self._in_flight.dec()
        _request(self._method, code).inc()
        _duration(self._method, outcome).observe(duration_s)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What is known of a batch when the worker is done with it. Bytes are those of the copies really made."""

    rows: int
    padded_rows: int
    call_s: float
    inside_s: float
    device_s: float
    device: str
    input_bytes: int
    entries: Iterable[Entry]


class ModelMetrics:
    """The series of one model, their children looked up once."""

    def __init__(self, model: str, backend: str, queue_capacity_rows_limit: int) -> None:
        """Creates every series whose labels are known from the model alone."""
        labels = (model, backend)
        self._labels = labels
        self._duration = families.inference_duration.labels(*labels)
        self._request_rows = families.request_rows.labels(*labels)
        self._queue_wait = families.queue_wait.labels(*labels)
        self._batch_rows = families.batch_rows.labels(*labels)
        self._batch_requests = families.batch_requests.labels(*labels)
        self._padding = families.batch_padding_rows.labels(*labels)
        self._queue_rows = families.queue_rows.labels(model)
        self._queued = -1
        families.queue_capacity_rows.labels(model).set(queue_capacity_rows_limit)
        self.set_queue_rows(0)

    def accepted(self, rows: int, payload_bytes: int) -> None:
        """A request of `rows` rows entered the queue."""
        self._request_rows.observe(rows)
        _hop["grpc_in"].inc(payload_bytes)

    def answered(self, duration_s: float, payload_bytes: int) -> None:
        """A request got its rows."""
        self._duration.observe(duration_s)
        _hop["grpc_out"].inc(payload_bytes)

    def set_queue_rows(self, rows: int) -> None:
        """The rows that wait now."""
        if rows != self._queued:
            self._queued = rows
            self._queue_rows.set(rows)

    def sealed(
        self, rows: int, waits_s: Iterable[float], requests_in_batch: int, trigger: str
    ) -> None:
        """A batch left for a worker; `waits_s` are those of the requests sealed for the first time."""
        self._batch_rows.observe(rows)
        self._batch_requests.observe(requests_in_batch)
        _trigger(trigger).inc()
        for wait_s in waits_s:
            self._queue_wait.observe(wait_s)

    def computed(self, record: BatchRecord) -> None:
        """A worker finished a batch."""
        _call("ok").observe(record.call_s)
        families.replica_overhead.observe(max(0.0, record.call_s - record.inside_s))
        _busy(*self._labels, record.device).inc(record.device_s)
        if record.padded_rows > record.rows:
            self._padding.inc(record.padded_rows - record.rows)
        _hop["to_replica"].inc(record.input_bytes)
        _hop["from_replica"].inc(record.input_bytes)
        if record.device != "cpu":
            _hop["h2d"].inc(record.input_bytes)
            _hop["d2h"].inc(record.input_bytes)
        replayed = False
        for entry in record.entries:
            self._count_kernel(entry)
            replayed = replayed or entry.mode == "graph"
        if replayed:
            _replays(*self._labels, str(record.padded_rows)).inc()

    def _count_kernel(self, entry: Entry) -> None:
        _launches(*self._labels, entry.kernel, entry.mode).inc(entry.launches)
        _dram(*self._labels, entry.kernel, "read").inc(entry.read_bytes)
        _dram(*self._labels, entry.kernel, "write").inc(entry.written_bytes)
        if entry.flops:
            _flops(*self._labels, entry.kernel).inc(entry.flops)


def call_ended_badly(outcome: str, call_s: float) -> None:
    """A batch did not come back with rows; `outcome` is one of families.CALL_OUTCOMES."""
    _call(outcome).observe(call_s)


def shed(reason: str) -> None:
    """A request was refused before compute."""
    families.requests_shed.labels(reason).inc()


def invalid(reason: str) -> None:
    """A request was refused by validation."""
    families.requests_invalid.labels(reason).inc()


def caller_left(phase: str) -> None:
    """A caller cancelled; `phase` is one of families.CANCEL_PHASES."""
    families.cancelled.labels(phase).inc()


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


def describe_model(model: ServedModel) -> None:
    """Sets the model gauge; `weights` is a short digest, so that equal weights are seen to be equal."""
    weights = hashlib.sha256(model.weights_id.encode()).hexdigest()[:12] if model.weights_id else ""
    families.model_info.labels(
        model.name,
        model.backend,
        model.dtype,
        str(model.columns),
        str(model.intermediate),
        weights,
    ).set(1)
