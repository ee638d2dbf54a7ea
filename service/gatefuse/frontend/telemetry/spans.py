"""The spans of a request and of a batch, out of what was noted while they ran. Pure: no clock, no library.

Names and attributes of the server span are OpenTelemetry's stable conventions for RPC; what those have no name for
begins with `gatefuse.`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gatefuse.frontend.requests.job import Job
from gatefuse.frontend.telemetry.batch_trace import BatchRecord
from gatefuse.frontend.telemetry.exchange import Exchange
from gatefuse.trace_context import RequestTrace, SpanContext
from gatefuse_protos import open_inference_pb2 as pb

SCHEMA_URL = "https://opentelemetry.io/schemas/1.45.0"

# Of a server's span these statuses are errors; the others are its client's doing.
SERVER_ERRORS = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)

Value = str | int | float


class Span(NamedTuple):
    """One span; times are seconds of the machine's monotonic clock."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    start_s: float
    end_s: float
    attributes: Mapping[str, Value] = {}
    links: tuple[SpanContext, ...] = ()
    is_server: bool = False
    parent_is_remote: bool = False
    error: str = ""


class Address(NamedTuple):
    """Where the service listens."""

    host: str
    port: int


def request_spans(exchange: Exchange, trace: RequestTrace, address: Address) -> list[Span]:
    """The server span of a request that has ended, and its children."""
    method = f"{pb.SERVICE_NAME}/{exchange.method}"
    code = exchange.code
    attributes: dict[str, Value] = {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "rpc.response.status_code": code,
        "server.address": address.host,
        "server.port": address.port,
        "gatefuse.request_id": exchange.request_id,
        **{f"gatefuse.{name}": value for name, value in exchange.asked_for.items()},
    }
    if exchange.reason:
        attributes["gatefuse.reason"] = exchange.reason
    if code in SERVER_ERRORS:
        attributes["error.type"] = code
    job = exchange.job
    children = [] if job is None else _phases(exchange, trace, job)
    if job is not None:
        attributes |= _accepted(job)
    server = Span(
        name=method,
        context=trace.context,
        parent=trace.parent,
        start_s=exchange.started_s,
        end_s=exchange.ended_s,
        attributes=attributes,
        links=tuple(trace.batches),
        is_server=True,
        parent_is_remote=trace.parent is not None,
        error=code if code in SERVER_ERRORS else "",
    )
    return [server, *children]


def _accepted(job: Job) -> dict[str, Value]:
    """What is known of a request that was queued; sizes and times, never what is in it."""
    return {
        "gatefuse.backend": job.request.model.backend,
        "gatefuse.rows": job.request.rows,
        "gatefuse.batch_rows": job.cost.batch_rows,
        "gatefuse.queue_seconds": job.cost.queue_s,
        "gatefuse.device_seconds": job.cost.compute_s,
    }


def _phases(exchange: Exchange, trace: RequestTrace, job: Job) -> list[Span]:
    """What happened to an accepted request; between `queue` and `encode` it is in its batches, which are linked."""
    accepted_s = job.accepted_s
    # A request that was never sealed waited until it ended.
    sealed_s = accepted_s + job.cost.queue_s if trace.batches else exchange.ended_s
    phases = [("decode", exchange.started_s, accepted_s), ("queue", accepted_s, sealed_s)]
    if exchange.encode_s:
        phases.append(("encode", exchange.encode_s, exchange.ended_s))
    return [
        Span(name, trace.context.child(), trace.context, start_s, end_s)
        for name, start_s, end_s in phases
    ]


def batch_spans(record: BatchRecord) -> list[Span]:
    """The span of a batch, the root of its own trace, and its children.

    The worker says how long the device took, not when: the worker's time is put in the middle of the call, and the
    device's at its end.
    """
    root, done, (sent_s, back_s) = record.trace.context, record.done, record.call_s
    model = record.model
    attributes: dict[str, Value] = {
        "gatefuse.model": model.name,
        "gatefuse.backend": model.backend,
        "gatefuse.layer": record.layer,
        "gatefuse.rows": record.rows,
        "gatefuse.requests": record.requests,
        "gatefuse.trigger": record.trigger,
        "gatefuse.replica": record.replica,
        "gatefuse.device": record.device,
        "gatefuse.outcome": record.outcome,
    }
    if done is not None:
        attributes["gatefuse.row_bucket"] = done.padded_rows
        attributes["gatefuse.padding_rows"] = done.padded_rows - record.rows
        attributes["gatefuse.kernel_launches"] = sum(entry.launches for entry in done.entries)
    spans = [
        Span(
            name="batch",
            context=root,
            parent=None,
            start_s=record.trace.sealed_s,
            end_s=record.ended_s,
            attributes=attributes,
            links=record.trace.members,
            error="" if record.outcome == "ok" else record.outcome,
        ),
        Span("dispatch", root.child(), root, sent_s, back_s),
    ]
    if done is not None:
        end_s = back_s - max(0.0, back_s - sent_s - done.inside_s) / 2
        spans.append(Span("device", root.child(), root, max(sent_s, end_s - done.device_s), end_s))
    return spans
