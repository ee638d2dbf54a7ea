"""Which requests get a line in the log, and what it says."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.service.fakes import MLP, MODELS, FakeClock, FakeWorker, exact_rows, infer_request

from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.telemetry import Exchange, Observer, RequestLog
from gatefuse.frontend.telemetry.request_log import BURST, WINDOW_S
from gatefuse.logs import FIELDS
from gatefuse_protos import open_inference_pb2 as pb

SLOW_S = 0.5


class Bed:
    """A request log, its clock, and what it wrote."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.clock = FakeClock()
        self.log = RequestLog(SLOW_S, self.clock)

    def end(
        self,
        code: str = "OK",
        reason: str = "",
        duration_s: float = 0.0,
        message: pb.ModelInferRequest | None = None,
    ) -> Exchange:
        exchange = Observer().began("ModelInfer", (("x-request-id", "mine"),))
        if message is not None:
            exchange.asks(message)
        exchange.code, exchange.reason = code, reason
        exchange.ended_s = exchange.started_s + duration_s
        self.log(exchange)
        return exchange

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [getattr(record, FIELDS) for record in self._caplog.records]


@pytest.fixture
def bed(caplog: pytest.LogCaptureFixture) -> Bed:
    return Bed(caplog)


def test_answered_in_time_is_not_worth_a_line(bed: Bed) -> None:
    bed.end(duration_s=SLOW_S * 0.99)
    assert bed.fields == []


def test_slow_or_refused_is(bed: Bed) -> None:
    bed.end(duration_s=SLOW_S * 1.01)
    bed.end("INVALID_ARGUMENT", "shape")
    slow, refused = bed.fields
    assert (slow["code"], slow["reason"]) == ("OK", "slow")
    assert slow["duration_ms"] == pytest.approx(SLOW_S * 1010)
    assert refused == {
        "method": "ModelInfer",
        "code": "INVALID_ARGUMENT",
        "reason": "shape",
        "request_id": "mine",
        "duration_ms": 0.0,
    }


def _asked(model: str, **layer: Any) -> pb.ModelInferRequest:
    parameters = {"layer": pb.InferParameter(**layer)} if layer else {}
    return pb.ModelInferRequest(model_name=model, parameters=parameters)


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        (_asked("llama-ffn", int64_param=99), {"model": "llama-ffn", "layer": 99}),
        (_asked("llama-ffn", int64_param=0), {"model": "llama-ffn", "layer": 0}),
        (_asked("llama-ffn", string_param="3"), {"model": "llama-ffn"}),
        (_asked("a\n\x1b[31m"), {"model": r"a\n\x1b[31m"}),
        (_asked("x" * 10_000), {"model": f"{'x' * 63}…"}),
        (_asked(""), {}),
    ],
)
def test_a_refused_request_says_what_it_asked_for(
    bed: Bed, message: pb.ModelInferRequest, asked: dict[str, Any]
) -> None:
    bed.end("NOT_FOUND", "model", message=message)
    (fields,) = bed.fields
    assert {key: fields[key] for key in ("model", "layer") if key in fields} == asked


def test_so_many_of_a_kind_and_then_how_many_more(bed: Bed) -> None:
    for _ in range(BURST + 3):
        bed.end("RESOURCE_EXHAUSTED", "queue_full")
    bed.end("INVALID_ARGUMENT", "shape")
    assert len(bed.fields) == BURST + 1
    bed.clock.now_s += WINDOW_S
    for _ in range(2):
        bed.end("RESOURCE_EXHAUSTED", "queue_full")
    assert [fields.get("left_out") for fields in bed.fields[-2:]] == [3, None]


def test_nothing_is_made_where_nothing_is_written(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gatefuse.frontend.telemetry.request_log")
    bed.end("INTERNAL", "internal")
    assert bed.fields == []


@pytest.mark.asyncio
async def test_an_accepted_request_is_described(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gatefuse.frontend.telemetry.request_log")
    dispatcher = Dispatcher(asyncio.get_running_loop())
    FakeWorker(dispatcher, MODELS, eager=True).connect()
    observer = Observer()
    observer.add(RequestLog(0.0))
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    exchange = observer.began("ModelInfer", (("traceparent", f"00-{trace}-00f067aa0ba902b7-00"),))
    deadline_s = asyncio.get_running_loop().time() + 60
    await dispatcher.infer(infer_request(MLP, exact_rows(0, 3)), deadline_s, exchange)
    observer.ended(exchange, "OK", "ok")
    (record,) = caplog.records
    fields = getattr(record, FIELDS)
    assert (fields["model"], fields["layer"]) == ("ffn", 0)
    assert (fields["rows"], fields["batch_rows"]) == (3, 3)
    assert (fields["trace_id"], fields["device_ms"]) == (trace, 250.0)
