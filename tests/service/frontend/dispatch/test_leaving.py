"""Callers that leave: in which phase, and what becomes of the rows that were counted in."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY
from tests.service.fakes import MLP, MODELS, FakeWorker, exact_rows, infer_request

from gatefuse import metrics
from gatefuse.errors import DeadlineExceeded
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.requests.job import Left
from gatefuse.link.messages import Status

ROWS = 5


def _rows(outcome: str) -> float:
    metrics.flush()
    labels = {"model": "ffn", "backend": "fused", "outcome": outcome}
    return REGISTRY.get_sample_value("gatefuse_rows_total", labels) or 0.0


def _accepted() -> float:
    metrics.flush()
    labels = {"model": "ffn", "backend": "fused"}
    return REGISTRY.get_sample_value("gatefuse_request_rows_sum", labels) or 0.0


class Service:
    """A dispatcher with one worker, and how many rows were answered and dropped since it was made."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(asyncio.get_running_loop())
        self.worker = FakeWorker(self.dispatcher, MODELS)
        self.worker.connect()
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return _accepted(), _rows("answered"), _rows("dropped")

    def rows(self) -> tuple[float, float]:
        """Answered and dropped; together they are those that were accepted."""
        accepted, answered, dropped = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        assert accepted == answered + dropped
        return answered, dropped

    def ask(self, timeout_s: float = 60.0) -> asyncio.Task[object]:
        request = infer_request(MLP, exact_rows(0, ROWS))
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        return asyncio.create_task(self.dispatcher.infer(request, deadline_s))


async def _settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def _phase(task: asyncio.Task[object]) -> str:
    task.cancel()
    with pytest.raises(Left) as left:
        await task
    assert task.cancelled()
    return left.value.phase


@pytest.mark.asyncio
async def test_while_the_rows_are_at_the_worker_and_while_they_wait() -> None:
    service = Service()
    executing, queued = service.ask(), service.ask()
    await _settle()
    assert await _phase(queued) == "queued"
    assert await _phase(executing) == "executing"
    assert service.rows() == (0, 2 * ROWS)
    service.worker.finish()
    await _settle()
    assert service.rows() == (0, 2 * ROWS)


@pytest.mark.asyncio
async def test_when_the_rows_are_back_and_the_handler_has_not_run() -> None:
    service = Service()
    task = service.ask()
    await _settle()
    service.worker.finish()
    assert await _phase(task) == "replying"
    assert service.rows() == (0, ROWS)


@pytest.mark.asyncio
async def test_answers_and_failures() -> None:
    service = Service()
    task = service.ask()
    await _settle()
    service.worker.finish()
    await task
    assert service.rows() == (ROWS, 0)
    late = service.ask()
    await _settle()
    service.worker.finish(Status.EXPIRED)
    with pytest.raises(DeadlineExceeded):
        await late
    assert service.rows() == (ROWS, ROWS)


@pytest.mark.asyncio
@pytest.mark.parametrize("back", [False, True])
async def test_a_request_of_a_stream(back: bool) -> None:
    service = Service()
    deadline_s = asyncio.get_running_loop().time() + 60
    job = service.dispatcher.submit(infer_request(MLP, exact_rows(0, ROWS)), deadline_s)
    await _settle()
    if back:
        service.worker.finish()
    assert service.dispatcher.abandon(job) == ("replying" if back else "executing")
    assert service.rows() == (0, ROWS)
