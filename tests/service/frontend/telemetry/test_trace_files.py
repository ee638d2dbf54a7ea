"""Traces: which requests, and what is written of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.fakes import DEEP, MLP, MODELS, FakeWorker, exact_rows, infer_request

from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.telemetry import Observer
from gatefuse.frontend.telemetry.trace_files import Tracer
from gatefuse.link.served_model import ServedModel
from gatefuse.run_folder.settings import Settings


class Bed:
    """A dispatcher that is traced, and its eager worker."""

    def __init__(self, path: Path, **changes: str) -> None:
        self._path = path
        self.dispatcher = Dispatcher(asyncio.get_running_loop())
        self.settings = Settings().with_trace("", {key: [text] for key, text in changes.items()})
        self.tracer = Tracer(path, self.settings)
        self._observer = Observer()
        self._observer.add(self.tracer)
        FakeWorker(self.dispatcher, MODELS, slots=8, eager=True).connect()

    async def ask(self, count: int, model: ServedModel = MLP) -> None:
        for number in range(count):
            request = infer_request(model, exact_rows(number, 2))._replace(request_id=str(number))
            deadline_s = asyncio.get_running_loop().time() + 60
            exchange = self._observer.began("ModelInfer", ())
            await self.dispatcher.infer(request, deadline_s, exchange)
            self._observer.ended(exchange, "OK", "ok")
        self.tracer.flush()

    @property
    def traces(self) -> list[dict[str, Any]]:
        """What is in the file."""
        return [json.loads(line) for line in self._path.read_text().splitlines()]


@pytest.mark.asyncio
async def test_nothing_is_traced_before_it_is_asked_for(tmp_path: Path) -> None:
    bed = Bed(tmp_path / "t")
    await bed.ask(5)
    assert bed.traces == []


@pytest.mark.asyncio
async def test_every_third_request_with_times_in_order(tmp_path: Path) -> None:
    bed = Bed(tmp_path / "t", trace_level="TIMESTAMPS", trace_rate="3")
    await bed.ask(10)
    assert [trace["request_id"] for trace in bed.traces] == ["2", "5", "8"]
    trace = bed.traces[0]
    assert (trace["model_name"], trace["rows"], trace["layer"]) == ("ffn", 2, 0)
    times = [each["ns"] for each in trace["timestamps"][:3]]
    assert times == sorted(times)
    names = [each["name"] for each in trace["timestamps"]]
    assert (names[0], names[-1]) == ("QUEUE_START", "REQUEST_END")


@pytest.mark.asyncio
async def test_so_many_and_no_more(tmp_path: Path) -> None:
    bed = Bed(tmp_path / "t", trace_level="TIMESTAMPS", trace_rate="1", trace_count="4")
    await bed.ask(10)
    assert len(bed.traces) == 4
    bed.tracer.configure(bed.settings)
    await bed.ask(10)
    assert len(bed.traces) == 8


@pytest.mark.asyncio
async def test_a_model_may_have_its_own(tmp_path: Path) -> None:
    bed = Bed(tmp_path / "t", trace_rate="1")
    bed.tracer.configure(bed.settings.with_trace("deep", {"trace_level": ["TIMESTAMPS"]}))
    await bed.ask(2)
    await bed.ask(2, DEEP)
    assert [trace["model_name"] for trace in bed.traces] == ["deep", "deep"]


@pytest.mark.asyncio
async def test_traces_are_written_as_many_at_a_time_as_asked_for(tmp_path: Path) -> None:
    bed = Bed(tmp_path / "t", trace_level="TIMESTAMPS", trace_rate="1", log_frequency="3")
    await bed.ask(2)
    assert bed.traces == []
    await bed.ask(1)
    assert len(bed.traces) == 3
    await bed.ask(1)
    bed.tracer.write()
    assert len(bed.traces) == 4


@pytest.mark.asyncio
async def test_frontends_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    beds = [Bed(path, trace_level="TIMESTAMPS", trace_rate="1") for _ in range(2)]
    for bed in beds:
        await bed.ask(3)
    assert len(beds[0].traces) == 6


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Tracer(tmp_path / "none" / "t", Settings())
