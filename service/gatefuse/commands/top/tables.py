"""A picture as titles and cells, for the terminal's tables and for plain text. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gatefuse.commands.figures import NOTHING, duration, number, share, size
from gatefuse.status.picture import Model, Picture, Work, Worker

_TITLES = (
    "model",
    "backend",
    "state",
    "req/s",
    "rows/s",
    "p50",
    "p99",
    "queued",
    "rows/batch",
    "padding",
    "launches/row",
    "bytes/row",
)
_SIDE_TITLES = (
    "since the start",
    "backend",
    "rows/batch",
    "launches/row",
    "bytes/row",
    "device/row",
    "p50",
)
_LEFT = 3
_SIDE_LEFT = 2


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its titles, its rows, how many columns are texts, and how many rows there was no room for."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    left_out: int = 0


def headline(picture: Picture) -> str:
    """What the service is, in a line."""
    facts = [
        picture.state,
        f"gRPC {picture.grpc}" if picture.grpc else "",
        f"version {picture.version}" if picture.version else "",
        f"up {_span(picture.up_s)}",
    ]
    return "  ".join(filter(None, facts))


def totals(picture: Picture) -> tuple[tuple[str, str], ...]:
    """The whole service in a few figures, each with its name."""
    now, so_far = picture.now, picture.totals
    failed = sum(so_far.requests.values()) - so_far.requests.get("ok", 0)
    failed_per_s = None if now is None else now.client_per_s + now.server_per_s + now.shed_per_s
    busy = None if now is None else now.busy_s_per_s / max(1, len(picture.workers))
    return (
        ("req/s", number(now.ok_per_s if now else None)),
        ("rows/s", number(now.rows_per_s if now else None)),
        ("p50", duration(now.latency.p50_s if now else None)),
        ("p99", duration(now.latency.p99_s if now else None)),
        ("failed/s", number(failed_per_s)),
        ("failed", f"{failed} of {failed + so_far.requests.get('ok', 0)}"),
        ("queued", str(so_far.queue_rows)),
        ("in flight", str(so_far.in_flight)),
        ("busy", share(busy)),
    )


def models(picture: Picture, most: int | None = None) -> Sheet:
    """The models, the busiest first; `most` is how many there is room for."""
    ordered = sorted(picture.models, key=_busyness, reverse=True)
    shown = ordered if most is None else ordered[: max(1, most)]
    return Sheet(_TITLES, tuple(map(_cells, shown)), _LEFT, len(ordered) - len(shown))


def side_by_side(picture: Picture, most: int | None = None) -> Sheet:
    """Models that compute the same beside each other, those with rows; the groups with the most rows first."""
    groups: dict[int, list[Model]] = {}
    for model in picture.models:
        if model.rows:
            groups.setdefault(model.group, []).append(model)
    several = [group for group in groups.values() if len(group) > 1]
    several.sort(key=lambda group: -sum(model.rows for model in group))
    rows = [_side_cells(model) for group in several for model in group]
    shown = rows if most is None else rows[: max(0, most)]
    return Sheet(_SIDE_TITLES, tuple(shown), _SIDE_LEFT, len(rows) - len(shown))


def workers(picture: Picture) -> str:
    """Every worker, in a line; those that are alike are counted."""
    counted: dict[str, list[Worker]] = {}
    for worker in picture.workers:
        counted.setdefault(f"{worker.state} on {worker.device}", []).append(worker)
    texts = [f"{len(alike)} {what}" for what, alike in counted.items()]
    restarts = sum(worker.restarts for worker in picture.workers)
    return f"workers: {', '.join(texts) or 'not placed yet'}; {restarts} restarts"


def devices(picture: Picture) -> tuple[str, ...]:
    """A line for each GPU that tells of itself."""
    lines = []
    for device in picture.devices:
        if device.memory_used_bytes is None and device.power_watts is None:
            continue
        lines.append(
            f"{device.device}: {share(device.utilization_ratio)} used, "
            f"{size(device.memory_used_bytes)} of {size(device.memory_total_bytes)}, "
            f"{number(device.power_watts)} W, {number(device.temperature_celsius)} °C"
            + (f", throttled: {', '.join(device.throttled)}" if device.throttled else "")
        )
    return tuple(lines)


def troubles(picture: Picture) -> str:
    """Why requests were not answered, workers replaced, devices faulty, in a line; empty where all was well."""
    texts = [
        f"{reason.what} {reason.reason} {reason.total}"
        for reason in picture.reasons
        if reason.what != "batch sealed"
    ]
    return "; ".join(texts)


def _busyness(model: Model) -> tuple[float, int]:
    return (model.now.requests_per_s if model.now else 0.0, model.requests)


def _cells(model: Model) -> tuple[str, ...]:
    work = model.now
    return (model.name, model.backend, model.state, *_work_cells(work, model.queue_rows))


def _work_cells(work: Work | None, queue_rows: int) -> tuple[str, ...]:
    if work is None:
        return (*[NOTHING] * 4, str(queue_rows), *[NOTHING] * 4)
    return (
        number(work.requests_per_s),
        number(work.rows_per_s),
        duration(work.latency.p50_s),
        duration(work.latency.p99_s),
        str(queue_rows),
        number(work.rows_per_batch),
        share(work.padding_ratio),
        number(work.launches_per_row),
        size(work.bytes_per_row),
    )


def _side_cells(model: Model) -> tuple[str, ...]:
    work = model.since_start
    return (
        model.name,
        model.backend,
        number(work.rows_per_batch),
        number(work.launches_per_row),
        size(work.bytes_per_row),
        duration(work.device_s_per_row),
        duration(work.latency.p50_s),
    )


def _span(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    return f"{days} d {hours} h" if days else f"{hours}:{rest // 60:02}:{rest % 60:02}"
