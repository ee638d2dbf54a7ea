"""What models and the whole service did between two moments. Pure."""

from __future__ import annotations

from gatefuse.status.picture import Latency, Reason, Traffic, Work
from gatefuse.status.samples import Change, Labels, Samples, quantile

_MODEL = ("model", "backend")
INFERENCE = ("ModelInfer", "ModelStreamInfer")
"""Methods whose requests ask for rows."""
_SUMS = {
    "requests": "gatefuse_inference_duration_seconds_count",
    "rows": "gatefuse_batch_rows_sum",
    "batches": "gatefuse_batch_rows_count",
    "padding_rows": "gatefuse_batch_padding_rows_total",
    "launches": "gatefuse_kernel_launches_total",
    "moved_bytes": "gatefuse_dram_bytes_modelled_total",
    "device_s": "gatefuse_device_busy_seconds_total",
}
_REASONS = (
    ("shed", "gatefuse_requests_shed_total", "reason"),
    ("invalid", "gatefuse_requests_invalid_total", "reason"),
    ("cancelled", "gatefuse_cancelled_total", "phase"),
    ("device error", "gatefuse_device_errors_total", "kind"),
    ("worker replaced", "gatefuse_replica_restarts_total", "cause"),
    ("batch sealed", "gatefuse_batches_total", "trigger"),
)


def traffic(change: Change) -> Traffic:
    """All inference requests, and the batches they rode in."""
    ended = _by_outcome(change)
    rows = change.total("gatefuse_batch_rows_sum")
    return Traffic(
        ok_per_s=ended.get("ok", 0.0) / change.seconds,
        client_per_s=ended.get("client", 0.0) / change.seconds,
        server_per_s=ended.get("server", 0.0) / change.seconds,
        shed_per_s=ended.get("shed", 0.0) / change.seconds,
        rows_per_s=rows / change.seconds,
        rows_per_batch=_ratio(rows, change.total("gatefuse_batch_rows_count")),
        padding_ratio=_padding(change.total("gatefuse_batch_padding_rows_total"), rows),
        busy_s_per_s=change.rate("gatefuse_device_busy_seconds_total"),
        latency=_latency(change.buckets("gatefuse_inference_duration_seconds").get((), {})),
    )


def works(change: Change) -> dict[Labels, Work]:
    """Each model's work, by model and backend."""
    sums = {field: change.by(name, *_MODEL) for field, name in _SUMS.items()}
    durations = change.buckets("gatefuse_inference_duration_seconds", *_MODEL)
    waits = change.buckets("gatefuse_queue_wait_seconds", *_MODEL)

    def work(key: Labels) -> Work:
        gain = {field: by_model.get(key, 0.0) for field, by_model in sums.items()}
        rows, device_s = gain["rows"], gain["device_s"]
        return Work(
            requests_per_s=gain["requests"] / change.seconds,
            rows_per_s=rows / change.seconds,
            latency=_latency(durations.get(key, {})),
            queue_wait=_latency(waits.get(key, {})),
            rows_per_batch=_ratio(rows, gain["batches"]),
            padding_ratio=_padding(gain["padding_rows"], rows),
            launches_per_row=_ratio(gain["launches"], rows),
            bytes_per_row=_ratio(gain["moved_bytes"], rows),
            device_s_per_row=_ratio(device_s, rows),
            bytes_per_device_s=_ratio(gain["moved_bytes"], device_s),
        )

    return {key: work(key) for key in dict.fromkeys(key for by in sums.values() for key in by)}


def request_totals(samples: Samples) -> dict[str, int]:
    """Inference requests that ended, by outcome."""
    ended = samples.by("gatefuse_request_duration_seconds_count", "outcome", "method")
    totals: dict[str, int] = {}
    for (outcome, method), count in ended.items():
        if method in INFERENCE:
            totals[outcome] = totals.get(outcome, 0) + round(count)
    return totals


def reasons(samples: Samples, change: Change | None) -> tuple[Reason, ...]:
    """Counters by why, those above 0; `change` is the last few seconds', None where that is not known yet."""
    found = []
    for what, name, label in _REASONS:
        gains = change.by(name, label) if change is not None else {}
        for key, total in samples.by(name, label).items():
            if total:
                per_s = gains.get(key, 0.0) / change.seconds if change is not None else None
                found.append(Reason(what, key[0], round(total), per_s))
    return tuple(found)


def failed_per_s(change: Change) -> float:
    """Inference requests that ended without rows."""
    ended = _by_outcome(change)
    return (sum(ended.values()) - ended.get("ok", 0.0)) / change.seconds


def _by_outcome(change: Change) -> dict[str, float]:
    gains = change.by("gatefuse_request_duration_seconds_count", "outcome", "method")
    sums: dict[str, float] = {}
    for (outcome, method), gain in gains.items():
        if method in INFERENCE:
            sums[outcome] = sums.get(outcome, 0.0) + gain
    return sums


def _latency(buckets: dict[float, float]) -> Latency:
    return Latency(quantile(0.5, buckets), quantile(0.99, buckets))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _padding(padding: float, rows: float) -> float | None:
    return _ratio(padding, padding + rows)
