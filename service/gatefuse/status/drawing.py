"""Draws the picture of a service from two moments of its metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from gatefuse.status import picture
from gatefuse.status.facts import Facts, ModelFacts
from gatefuse.status.machine import devices, processes
from gatefuse.status.picture import FORMAT, Model, Picture, Point, State, Totals, Work, Worker
from gatefuse.status.samples import Change, Labels, Samples
from gatefuse.status.work import (
    INFERENCE,
    failed_per_s,
    reasons,
    request_totals,
    traffic,
    works,
)

Recent = Mapping[Labels, Sequence[float]]
"""Requests a second of the last seconds, oldest first, by model and backend."""


def draw(
    facts: Facts,
    samples: Samples,
    window: Change | None,
    started_unix_s: int,
    up_s: float,
    history: Sequence[Point] = (),
    recent: Recent | None = None,
) -> Picture:
    """The picture.

    Args:
        facts: What the driver knows.
        samples: The metrics now.
        window: The last few seconds; None as long as there is one moment only.
        started_unix_s: When the service started, in seconds since 1970.
        up_s: How long ago that is; above 0.
        history: The service, second by second.
        recent: Its models.
    """
    (build,) = samples.labels("gatefuse_build_info")[:1] or [{}]
    return Picture(
        format=FORMAT,
        state=service_state(facts),
        version=build.get("version", ""),
        grpc=facts.grpc,
        started_unix_s=started_unix_s,
        up_s=up_s,
        window_s=window.seconds if window is not None else None,
        totals=_totals(samples),
        now=traffic(window) if window is not None else None,
        models=_models(facts, samples, window, up_s, recent or {}),
        workers=_workers(facts),
        devices=devices(samples, window),
        processes=processes(samples, window, facts.pids),
        reasons=reasons(samples, window),
        history=tuple(history),
    )


def point(change: Change, after: Samples) -> Point:
    """One step of the history, that has just ended."""
    done = traffic(change)
    return Point(
        age_s=0.0,
        ok_per_s=done.ok_per_s,
        failed_per_s=failed_per_s(change),
        rows_per_s=done.rows_per_s,
        p50_s=done.latency.p50_s,
        p99_s=done.latency.p99_s,
        queue_rows=round(after.total("gatefuse_queue_rows")),
        busy_s_per_s=done.busy_s_per_s,
    )


def service_state(facts: Facts) -> State:
    """One word for the whole: whether every worker is there, and requests are taken."""
    if facts.draining:
        return "draining"
    if not facts.grpc:
        return "starting"
    ready = sum(worker.state == "ready" for worker in facts.workers)
    if ready == len(facts.workers):
        return "ready"
    return "degraded" if ready else "down"


def model_state(model: ModelFacts, states: Mapping[int, str]) -> str:
    """The repository's state in lower case; a model that is READY there is what its workers are.

    `states` are the workers', by slot: `ready` if all that hold the model are, `degraded` if some are, else `down`, or
    `starting` before any was ready.
    """
    if model.state != "READY":
        return model.state.lower()
    found = [states.get(slot, "dead") for slot in model.workers]
    if "ready" in found:
        return "ready" if set(found) == {"ready"} else "degraded"
    return "starting" if set(found) <= {"starting", "warming"} else "down"


def _totals(samples: Samples) -> Totals:
    in_flight = samples.by("gatefuse_requests_in_flight", "method")
    return Totals(
        requests=request_totals(samples),
        rows=round(samples.total("gatefuse_batch_rows_sum")),
        in_flight=round(sum(in_flight.get((method,), 0.0) for method in INFERENCE)),
        queue_rows=round(samples.total("gatefuse_queue_rows")),
        queue_capacity_rows=round(samples.total("gatefuse_queue_capacity_rows")),
    )


def _workers(facts: Facts) -> tuple[Worker, ...]:
    return tuple(
        Worker(
            slot=worker.slot,
            state=worker.state,
            device=worker.device,
            restarts=worker.restarts,
            models=sum(worker.slot in model.workers for model in facts.models),
        )
        for worker in facts.workers
    )


def _models(
    facts: Facts, samples: Samples, window: Change | None, up_s: float, recent: Recent
) -> tuple[Model, ...]:
    """Models in the order of the configuration, each as it is, then on other backends that it did work on."""
    described = {
        (labels.get("model", ""), labels.get("backend", "")): labels
        for labels in samples.past_and_present("gatefuse_model_info")
    }
    of_start = works(Change(Samples(), samples, up_s))
    of_window = works(window) if window is not None else {}
    requests = samples.by("gatefuse_inference_duration_seconds_count", "model", "backend")
    rows = samples.by("gatefuse_batch_rows_sum", "model", "backend")
    queues = samples.by("gatefuse_queue_rows", "model")
    capacities = samples.by("gatefuse_queue_capacity_rows", "model")
    states = {worker.slot: worker.state for worker in facts.workers}
    loaded = _backends(samples.by("gatefuse_model_info", "model", "backend"))
    counted = _backends(requests, rows)
    shown = []
    for model in facts.models:
        now, ever = loaded.get(model.name, []), counted.get(model.name, [])
        present = _present(model.backend, now, ever)
        for backend in dict.fromkeys([present, *now, *ever]):
            key = (model.name, backend)
            labels = described.get(key, {})
            is_present = backend == present
            shown.append(
                Model(
                    name=model.name,
                    backend=backend,
                    kind=model.kind,
                    dtype=labels.get("dtype", model.dtype),
                    columns=int(labels.get("hidden", 0)),
                    intermediate=int(labels.get("intermediate", 0)),
                    group=model.group,
                    state=model_state(model, states) if is_present else "replaced",
                    reason=model.reason if is_present else "",
                    replicas=len(model.workers),
                    replicas_ready=sum(states.get(slot) == "ready" for slot in model.workers),
                    queue_rows=round(queues.get(key[:1], 0.0)) if is_present else 0,
                    queue_capacity_rows=round(capacities.get(key[:1], 0.0)),
                    requests=round(requests.get(key, 0.0)),
                    rows=round(rows.get(key, 0.0)),
                    now=of_window.get(key, IDLE) if window is not None else None,
                    since_start=of_start.get(key, IDLE),
                    recent_per_s=tuple(recent.get(key, ())),
                )
            )
    return tuple(shown)


def _backends(*found: Mapping[Labels, float]) -> dict[str, list[str]]:
    """For each model the backends for which one of the figures, by model and backend, is above 0."""
    backends: dict[str, list[str]] = {}
    for (name, backend), value in chain.from_iterable(by.items() for by in found):
        if value:
            backends.setdefault(name, []).append(backend)
    return backends


def _present(configured: str, loaded: Sequence[str], counted: Sequence[str]) -> str:
    """The backend that a model runs on now, or ran on last.

    `auto` is what the workers made of it. While none has loaded the model that is not known, unless it ran before.
    """
    if configured != "auto":
        return configured
    if _AUTO in loaded or (not loaded and _AUTO in counted):
        return _AUTO
    return loaded[-1] if loaded else configured


_AUTO = "fused"
"""What `auto` is, on every device: another backend that is loaded beside it is about to go."""
_NO_LATENCY = picture.Latency(None, None)
IDLE = Work(0.0, 0.0, _NO_LATENCY, _NO_LATENCY, None, None, None, None, None, None)
"""The work of a model that did none."""
