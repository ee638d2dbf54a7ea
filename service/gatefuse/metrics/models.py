"""What one load of a model counts: the busiest series, each looked up once."""

import hashlib
from functools import cache
from typing import NamedTuple

from gatefuse.link.messages import DoneMessage
from gatefuse.link.served_model import ServedModel
from gatefuse.metrics import families, series
from gatefuse.metrics.buffers import CounterBuffer, HistogramBuffer, counting, put
from gatefuse_kernels.ledger import Mode

# Every load of a model that has series now, the newest last.
_open_models: list["ModelMetrics"] = []


class _Device(NamedTuple):
    """A device's time, and the ways there and back."""

    busy: CounterBuffer
    hops: tuple[tuple[CounterBuffer, CounterBuffer], ...]


class _Kernel(NamedTuple):
    """What one kernel did in one mode."""

    launches: CounterBuffer
    read: CounterBuffer
    written: CounterBuffer
    flops: CounterBuffer


class ModelMetrics:
    """The series of one load of a model."""

    def __init__(self, model: ServedModel, queue_capacity_rows: int) -> None:
        """Creates every series whose labels are known from the model."""
        self.model = model
        self.capacity_rows = queue_capacity_rows
        labels = (model.name, model.backend)
        self._labels = labels
        self._duration = series.inferences(*labels)
        self._request_rows = series.request_rows(*labels)
        self._answered_rows, self._dropped_rows = (
            series.rows(*labels, outcome) for outcome in families.ROW_OUTCOMES
        )
        self._queue_wait = series.queue_waits(*labels)
        self._batch_rows = series.batch_rows(*labels)
        self._batch_requests = series.batch_requests(*labels)
        self._padding = series.padding(*labels)
        self._calls_ok = series.calls("ok")
        self._overhead = series.overhead()
        self._grpc_in = series.hops("grpc_in")
        self._grpc_out = series.hops("grpc_out")
        # Met once, and kept: a lookup by labels costs as much as ten additions.
        self._devices: dict[str, _Device] = {}
        self._kernels: dict[tuple[str, str], _Kernel] = {}
        self._device_batches: dict[int, HistogramBuffer] = {}
        self._counts = counting()
        rows = 1
        while rows < 4 * model.max_batch_rows:
            series.device_batches(*labels, _row_class(rows))
            rows *= 4
        for kernel, mode in model.kernels:
            self._meet_kernel(kernel, mode)
        _open_models.append(self)
        _tell_of(model)

    def meet_device(self, device: str) -> None:
        """A worker with this device serves the model: its series begin at zero, as those of the batches do."""
        if device not in self._devices:
            self._meet_device(device)

    def close(self) -> None:
        """The load is gone: what tells of it, goes; what it did stays counted."""
        _open_models.remove(self)
        _tell_of(self.model)

    def accepted(self, rows: int, payload_bytes: int) -> None:
        """A request of `rows` rows entered the queue."""
        self._request_rows.observe(rows)
        self._grpc_in.inc(payload_bytes)

    def answered(self, rows: int, duration_s: float, payload_bytes: int) -> None:
        """A request got its rows."""
        self._answered_rows.inc(rows)
        self._duration.observe(duration_s)
        self._grpc_out.inc(payload_bytes)

    def dropped(self, rows: int) -> None:
        """An accepted request ended without them."""
        self._dropped_rows.inc(rows)

    def waited(self, wait_s: float) -> None:
        """A request's first rows were sealed `wait_s` after it was accepted."""
        self._queue_wait.observe(wait_s)

    def sealed(self, rows: int, requests: int, trigger: str) -> None:
        """A batch left for a worker."""
        self._batch_rows.observe(rows)
        self._batch_requests.observe(requests)
        series.batches(trigger).inc()

    def computed(
        self, device: str, rows: int, moved: tuple[int, int], done: DoneMessage, call_s: float
    ) -> None:
        """A worker finished a batch of `rows` rows; `moved` are the bytes that travelled there, and back.

        `device` is the label of its device: `cuda:` or `cpu:` and the worker's slot.
        """
        if not self._counts:
            return
        self._calls_ok.observe(call_s)
        self._overhead.observe(max(0.0, call_s - done.inside_s))
        known = self._devices.get(device) or self._meet_device(device)
        known.busy.inc(done.device_s)
        for there, back in known.hops:
            there.inc(moved[0])
            back.inc(moved[1])
        padded_rows = done.padded_rows
        times = self._device_batches.get(padded_rows) or self._meet_rows(padded_rows)
        times.observe(done.device_s)
        if padded_rows > rows:
            self._padding.inc(padded_rows - rows)
        replayed = False
        for entry in done.entries:
            kernel = self._kernels.get(entry[:2]) or self._meet_kernel(*entry[:2])
            kernel.launches.inc(entry.launches)
            kernel.read.inc(entry.read_bytes)
            kernel.written.inc(entry.written_bytes)
            kernel.flops.inc(entry.flops)
            replayed = replayed or entry.mode == "graph"
        if replayed:
            series.replays(*self._labels, str(padded_rows)).inc()

    def _meet_device(self, device: str) -> _Device:
        hops = families.REPLICA_HOPS if device.startswith("cpu") else families.DEVICE_HOPS
        met = _Device(
            series.busy(*self._labels, device),
            tuple((series.hops(there), series.hops(back)) for there, back in hops),
        )
        return self._devices.setdefault(device, met)

    def _meet_rows(self, rows: int) -> HistogramBuffer:
        times = series.device_batches(*self._labels, _row_class(rows))
        return self._device_batches.setdefault(rows, times)

    def _meet_kernel(self, kernel: str, mode: Mode) -> _Kernel:
        labels = (*self._labels, kernel)
        met = _Kernel(
            series.launches(*labels, mode),
            series.dram(*labels, "read"),
            series.dram(*labels, "write"),
            series.flops(*labels),
        )
        return self._kernels.setdefault((kernel, mode), met)


@cache
def _row_class(rows: int) -> str:
    """The smallest of 1, 4, 16, ... that is not below `rows`, as a label."""
    return str(4 ** (((rows - 1).bit_length() + 1) // 2))


def _tell_of(model: ServedModel) -> None:
    """Sets what describes a model by the loads of it that are left; zero takes a series off the endpoint."""
    loads = [each for each in _open_models if each.model.name == model.name]
    alike = any(_info_labels(each.model) == _info_labels(model) for each in loads)
    put(families.model_info, _info_labels(model), alike)
    put(families.queue_capacity_rows, (model.name,), loads[-1].capacity_rows if loads else 0)


def _info_labels(model: ServedModel) -> tuple[str, ...]:
    # A short digest: equal weights are seen to be equal, and no path is shown.
    weights = hashlib.sha256(model.weights_id.encode()).hexdigest()[:12] if model.weights_id else ""
    return (
        model.name,
        model.backend,
        model.dtype,
        str(model.columns),
        str(model.intermediate),
        weights,
    )
