"""What is shown, by the page and by `gatefuse top`: plain data, the same as /status.json.

Times are seconds, sizes bytes, shares 0 to 1. None is what is not known, or what would be a quotient by zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FORMAT = 1
"""Of /status.json: raised when a reader of the old one would read the new one wrong."""

State = Literal["starting", "ready", "degraded", "down", "draining"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Estimated from a histogram's buckets."""

    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Inference requests of the whole service over some time, by how they ended."""

    ok_per_s: float
    client_per_s: float  # refused as invalid, or cancelled
    server_per_s: float
    shed_per_s: float  # refused for now
    rows_per_s: float
    rows_per_batch: float | None
    padding_ratio: float | None  # of the rows that were computed
    busy_s_per_s: float  # device seconds, of all devices
    latency: Latency  # of requests that were answered with rows


@dataclass(frozen=True, slots=True)
class Work:
    """What one model did over some time. Bytes are the modelled traffic of the kernels."""

    requests_per_s: float
    rows_per_s: float
    latency: Latency
    queue_wait: Latency
    rows_per_batch: float | None
    padding_ratio: float | None
    launches_per_row: float | None
    bytes_per_row: float | None
    device_s_per_row: float | None
    bytes_per_device_s: float | None


@dataclass(frozen=True, slots=True)
class Model:
    """One model, as run by one backend; one that did work before it was loaded with another has a row for each.

    `now` is the last few seconds' work, None until there are two moments; `since_start` all of it.
    `requests` and `rows` are totals. A group's models compute the same.
    """

    name: str
    backend: str
    kind: str
    dtype: str
    columns: int  # 0: any
    intermediate: int  # 0: an elementwise model
    group: int
    state: str
    reason: str
    replicas: int
    replicas_ready: int
    queue_rows: int
    queue_capacity_rows: int
    requests: int
    rows: int
    now: Work | None
    since_start: Work
    recent_per_s: tuple[float, ...]  # requests, oldest first


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker; `models` counts those that are placed on it."""

    slot: int
    state: str
    device: str
    restarts: int
    models: int


@dataclass(frozen=True, slots=True)
class Device:
    """One device, with what is known of it; NVML's figures only where there is a GPU."""

    device: str
    busy_ratio: float | None
    utilization_ratio: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_watts: float | None
    temperature_celsius: float | None
    throttled: tuple[str, ...]
    ecc_errors: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the service; a pid is as the service's own machine or container numbers it."""

    process: str
    resident_bytes: float | None
    open_fds: int | None
    cpu_ratio: float | None  # of one core
    event_loop_lag_s: float | None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why requests were not answered, batches sealed or workers replaced: `what` is the family, in a word."""

    what: str
    reason: str
    total: int
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """The service in the second or so that ended `age_s` ago."""

    age_s: float
    ok_per_s: float
    failed_per_s: float
    rows_per_s: float
    p50_s: float | None
    p99_s: float | None
    queue_rows: int
    busy_s_per_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Since the service started; gauges are now's."""

    requests: dict[str, int]  # by outcome: ok, client, server, shed
    rows: int
    in_flight: int
    queue_rows: int
    queue_capacity_rows: int


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it. `window_s` is what `now` covers, `None` as long as it is."""

    format: int
    state: State
    version: str
    grpc: str
    started_unix_s: int
    up_s: float
    window_s: float | None
    totals: Totals
    now: Traffic | None
    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    reasons: tuple[Reason, ...]
    history: tuple[Point, ...]
