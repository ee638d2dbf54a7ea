"""Requests from admission to their answers, with workers that finish, fail and die when told to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.service.fakes import (
    ANY_WIDTH,
    DEEP,
    DEVICE_S,
    ENTRY,
    MLP,
    MODELS,
    PAIR,
    FakeClock,
    FakeWorker,
    exact_rows,
    infer_request,
)

from gatefuse.batching.batcher import Limits, Trigger
from gatefuse.batching.queue_policy import Priorities, QueuePolicy
from gatefuse.errors import (
    ComputeFailed,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    NoReplica,
    QueueFull,
    QueueTimeout,
    ServiceError,
)
from gatefuse.frontend.dispatch.dispatcher import MAX_ATTEMPTS, Dispatcher
from gatefuse.frontend.requests.codec import Cost, InferRequest, Outputs
from gatefuse.frontend.requests.job import Job
from gatefuse.frontend.shared_memory import RegionSlice
from gatefuse.frontend.statistics import BatchTimes
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.wire import Datatype, encode

EMPTY = "Dispatcher(requests=0, Batcher(rows={}, draining=False))"
Answer = tuple[Any, Cost]


class Service:
    """A dispatcher on the running loop, its clock, and what was asked of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.dispatcher = Dispatcher(asyncio.get_running_loop(), self.clock)
        self._next_row = 0

    def worker(self, *, slots: int = 1, **limits: Any) -> FakeWorker:
        worker = FakeWorker(self.dispatcher, MODELS, slots=slots)
        worker.connect(**limits)
        return worker

    def rows(self, count: int, columns: int = 3) -> NDArray[np.float32]:
        """Rows unlike any asked for before."""
        x = exact_rows(self._next_row, count, columns)
        self._next_row += count
        return x

    def ask(self, request: InferRequest | int, timeout_s: float = 60.0) -> asyncio.Task[Answer]:
        """Starts a request; a number stands for so many rows of the MLP."""
        if isinstance(request, int):
            request = infer_request(MLP, self.rows(request))
        deadline_s = self.clock.now_s + timeout_s
        return asyncio.create_task(self.dispatcher.infer(request, deadline_s))

    async def crowd(self, worker: FakeWorker, requests: int) -> None:
        """Answers so many requests that were here together, so that as many are expected again."""
        tasks = [self.ask(1) for _ in range(requests)]
        while not all(task.done() for task in tasks):
            await settle()
            if worker.waiting:
                worker.finish()
        worker.sent.clear()
        worker.got_batch.clear()

    async def ask_together(
        self, worker: FakeWorker, *requests: InferRequest | int, timeouts_s: Sequence[float] = ()
    ) -> list[asyncio.Task[Answer]]:
        """Starts requests while the worker is busy, so that all are there when it is free for the next batch."""
        busy = self.ask(8)
        await settle()
        patience = itertools.chain(timeouts_s, itertools.repeat(60.0))
        tasks = [
            self.ask(request, timeout_s)
            for request, timeout_s in zip(requests, patience, strict=False)
        ]
        await settle()
        worker.finish()
        await busy
        await settle()
        del worker.sent[0]
        return tasks


async def settle() -> None:
    """Lets everything that is due run."""
    for _ in range(8):
        await asyncio.sleep(0)


def _doubled(request: InferRequest) -> Outputs:
    """What the fake worker answers to a request in FP32."""
    doubled = []
    for payload in request.payloads:
        assert not isinstance(payload, RegionSlice)
        doubled.append(encode(2 * np.frombuffer(payload, "<f4")))
    return tuple(doubled)


async def _error(task: asyncio.Task[Answer]) -> BaseException:
    """What the task ended with, which must be an exception, without waiting for anything else."""
    await asyncio.wait([task], timeout=5)
    error = task.exception()
    assert error is not None
    return error


@pytest.mark.asyncio
async def test_rows_come_back_to_who_sent_them() -> None:
    service = Service()
    worker = service.worker()
    requests = [infer_request(MLP, service.rows(rows)) for rows in (1, 3, 4)]
    tasks = await service.ask_together(worker, *requests)
    assert [sealed.rows for sealed in worker.sent] == [8]
    worker.finish()
    answers = [await task for task in tasks]
    assert [outputs for outputs, _ in answers] == list(map(_doubled, requests))
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_the_cost_of_a_whole_request() -> None:
    service = Service()
    worker = service.worker()
    first = service.ask(5)
    await settle()
    second = service.ask(2)
    third = service.ask(1)
    await settle()
    service.clock.now_s += 2.0
    worker.finish()
    await settle()
    worker.finish()
    moved = ENTRY.read_bytes + ENTRY.written_bytes
    assert (await first)[1] == Cost(0.0, DEVICE_S, 5, ENTRY.launches, moved)
    for task in (second, third):
        assert (await task)[1] == Cost(2.0, DEVICE_S, 3, ENTRY.launches, moved)


@pytest.mark.asyncio
async def test_a_request_above_the_largest_batch_is_split_and_joined() -> None:
    service = Service()
    worker = service.worker(slots=3)
    request = infer_request(MLP, service.rows(19))
    task = service.ask(request)
    await settle()
    assert [sealed.rows for sealed in worker.sent] == [8, 8, 3]
    # The pieces come back in another order.
    for position in (2, 0, 0):
        worker.finish(position=position)
    outputs, cost = await task
    assert outputs == _doubled(request)
    moved = ENTRY.read_bytes + ENTRY.written_bytes
    assert cost == Cost(0.0, 3 * DEVICE_S, 19, 3 * ENTRY.launches, 3 * moved)


@pytest.mark.asyncio
async def test_a_piece_shares_its_batch_with_others() -> None:
    service = Service()
    worker = service.worker()
    requests = [infer_request(MLP, service.rows(rows)) for rows in (11, 4)]
    tasks = [service.ask(request) for request in requests]
    await settle()
    worker.finish()
    await settle()
    assert [sealed.rows for sealed in worker.sent] == [8, 7]
    worker.finish()
    answers = [await task for task in tasks]
    assert [outputs for outputs, _ in answers] == list(map(_doubled, requests))
    assert [cost.batch_rows for _, cost in answers] == [15, 7]


@pytest.mark.asyncio
@pytest.mark.parametrize("datatype", Datatype)
@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
async def test_an_answer_has_the_requests_datatype(model: Any, datatype: Datatype) -> None:
    service = Service()
    worker = service.worker()
    inputs = [service.rows(13) for _ in model.inputs]
    task = service.ask(infer_request(model, np.stack(inputs), datatype))
    for _ in range(2):
        await settle()
        worker.finish()
    assert (await task)[0] == tuple(encode(2 * x, datatype) for x in inputs)


@pytest.mark.asyncio
async def test_several_inputs_share_a_batch_and_each_gets_the_outputs_it_asks_for() -> None:
    service = Service()
    worker = service.worker()
    inputs = [(service.rows(rows, 5), service.rows(rows, 5)) for rows in (1, 3, 2)]
    wanted = [(0, 1), (1,), (1, 0)]
    requests = [
        infer_request(PAIR, np.stack(pair))._replace(outputs=outputs)
        for pair, outputs in zip(inputs, wanted, strict=True)
    ]
    tasks = await service.ask_together(worker, *requests)
    assert [sealed.rows for sealed in worker.sent] == [6]
    worker.finish()
    for task, pair, outputs in zip(tasks, inputs, wanted, strict=True):
        assert (await task)[0] == tuple(encode(2 * pair[number]) for number in outputs)


@pytest.mark.asyncio
async def test_a_request_of_several_inputs_is_split_and_joined() -> None:
    service = Service()
    worker = service.worker(slots=3)
    request = infer_request(PAIR, np.stack([service.rows(19, 7), service.rows(19, 7)]))
    task = service.ask(request._replace(outputs=(1, 0)))
    await settle()
    assert [sealed.rows for sealed in worker.sent] == [8, 8, 3]
    for position in (2, 0, 0):
        worker.finish(position=position)
    assert (await task)[0] == _doubled(request)[::-1]


@pytest.mark.asyncio
async def test_layers_and_widths_do_not_mix() -> None:
    service = Service()
    worker = service.worker(slots=4)
    requests = [
        infer_request(DEEP, service.rows(1), layer=2),
        infer_request(DEEP, service.rows(1), layer=5),
        infer_request(ANY_WIDTH, service.rows(1, 5)),
        infer_request(ANY_WIDTH, service.rows(1, 6)),
    ]
    tasks = [service.ask(request) for request in requests]
    await settle()
    keys = [(sealed.key.model, sealed.key.layer, sealed.key.columns) for sealed in worker.sent]
    assert keys == [("deep", 2, 3), ("deep", 5, 3), ("scale", 0, 5), ("scale", 0, 6)]
    for position in (3, 1, 0, 0):
        worker.finish(position=position)
    assert [(await task)[0] for task in tasks] == list(map(_doubled, requests))


@pytest.mark.asyncio
async def test_a_caller_that_leaves_the_queue_leaves_no_trace() -> None:
    service = Service()
    worker = service.worker()
    first, leaver, mate = service.ask(1), service.ask(20), service.ask(3)
    await settle()
    worker.finish()
    await settle()
    leaver.cancel()
    await settle()
    assert leaver.cancelled()
    while worker.waiting:
        worker.finish()
        await settle()
    assert first.done()
    assert (await mate)[1].batch_rows == 3
    # Of the leaver's rows only those that had been sealed were computed.
    assert [sealed.rows for sealed in worker.sent] == [1, 8, 3]
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_caller_that_leaves_before_its_batch_is_sealed_costs_nothing() -> None:
    service = Service()
    worker = service.worker()
    busy = service.ask(8)
    await settle()
    leaver, mate = service.ask(5), service.ask(4)
    await settle()
    leaver.cancel()
    await settle()
    worker.finish()
    await settle()
    worker.finish()
    await asyncio.gather(busy, mate)
    assert [sealed.rows for sealed in worker.sent] == [8, 4]
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_caller_that_leaves_a_running_batch_harms_nobody() -> None:
    service = Service()
    worker = service.worker()
    requests = [infer_request(MLP, service.rows(rows)) for rows in (2, 3, 2)]
    first, leaver, last = await service.ask_together(worker, *requests)
    assert [sealed.rows for sealed in worker.sent] == [7]
    leaver.cancel()
    await settle()
    assert leaver.cancelled()
    worker.finish()
    assert (await first)[0] == _doubled(requests[0])
    assert (await last)[0] == _doubled(requests[2])
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_cancel_in_the_turn_of_the_answer() -> None:
    service = Service()
    worker = service.worker()
    leaver, mate = await service.ask_together(worker, 1, 1)
    worker.finish()
    leaver.cancel()
    await asyncio.wait([leaver])
    assert leaver.cancelled()
    assert (await mate)[1].batch_rows == 2
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_rows_past_their_deadline_never_reach_a_worker() -> None:
    service = Service()
    worker = service.worker()
    busy = service.ask(8)
    await settle()
    late, mate = service.ask(3, timeout_s=0.01), service.ask(2)
    assert isinstance(await _error(late), DeadlineExceeded)
    service.clock.now_s += 0.01
    worker.finish()
    await settle()
    worker.finish()
    await asyncio.gather(busy, mate)
    assert [sealed.rows for sealed in worker.sent] == [8, 2]
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_who_is_let_go_by_the_queue_is_told_when_its_time_is_over() -> None:
    """The queue looks for rows to seal, and finds these late, just before their timer rings."""
    service = Service()
    worker = service.worker()
    busy = service.ask(8)
    await settle()
    impatient = service.ask(infer_request(MLP, service.rows(3))._replace(timeout_us=50_000))
    await settle()
    service.clock.now_s += 0.06
    worker.finish()
    error = await asyncio.wait_for(_error(impatient), 5)
    assert isinstance(error, QueueTimeout)
    await busy
    assert [sealed.rows for sealed in worker.sent] == [8]
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_who_waited_as_long_as_it_may_is_refused_before_its_deadline() -> None:
    service = Service()
    worker = service.worker()
    busy = service.ask(8)
    await settle()
    impatient = service.ask(infer_request(MLP, service.rows(3))._replace(timeout_us=10_000))
    mate = service.ask(infer_request(MLP, service.rows(2))._replace(timeout_us=60_000_000))
    assert isinstance(await _error(impatient), QueueTimeout)
    service.clock.now_s += 0.01
    worker.finish()
    await settle()
    worker.finish()
    await asyncio.gather(busy, mate)
    assert [sealed.rows for sealed in worker.sent] == [8, 2]
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_timeout_is_over_once_a_batch_was_sealed() -> None:
    service = Service()
    worker = service.worker()
    # Two batches: the second piece waits for longer than the request might have.
    task = service.ask(infer_request(MLP, service.rows(10))._replace(timeout_us=1_000))
    await settle()
    service.clock.now_s += 1.0
    await asyncio.sleep(0.02)
    worker.finish()
    await settle()
    worker.finish()
    assert len((await task)[0][0]) == 10 * 3 * 4
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_deadline_holds_after_the_timeout_is_over() -> None:
    service = Service()
    worker = service.worker()
    request = infer_request(MLP, service.rows(2))._replace(timeout_us=10_000)
    task = service.ask(request, timeout_s=0.05)
    await settle()
    assert isinstance(await _error(task), DeadlineExceeded)
    worker.finish()
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_the_first_level_is_served_first_and_has_a_queue_of_its_own() -> None:
    service = Service()
    worker = FakeWorker(service.dispatcher, {"ffn": MLP})
    limits = Limits(8, 1000, 0.0, Priorities(2, 2), QueuePolicy(max_queue_size=2))
    service.dispatcher.worker_ready(worker, {"ffn": limits})
    busy = service.ask(8)
    await settle()
    ordinary = [service.ask(infer_request(MLP, service.rows(8))) for _ in range(2)]
    await settle()
    refused = service.ask(1)
    assert isinstance(await _error(refused), QueueFull)
    urgent = service.ask(infer_request(MLP, service.rows(7))._replace(priority=1))
    await settle()
    for _ in range(4):
        worker.finish()
        await settle()
    await asyncio.gather(busy, urgent, *ordinary)
    assert [sealed.rows for sealed in worker.sent] == [8, 7, 8, 8]


@pytest.mark.asyncio
async def test_a_level_may_have_a_policy_of_its_own() -> None:
    service = Service()
    worker = FakeWorker(service.dispatcher, {"ffn": MLP})
    of_first = {1: QueuePolicy(default_timeout_s=0.02, max_queue_size=1)}
    limits = Limits(8, 1000, 0.0, Priorities(2, 2), QueuePolicy(max_queue_size=2), of_first)
    service.dispatcher.worker_ready(worker, {"ffn": limits})
    busy = service.ask(8)
    await settle()
    ordinary = [service.ask(infer_request(MLP, service.rows(8))) for _ in range(2)]
    urgent = [
        service.ask(infer_request(MLP, service.rows(8))._replace(priority=1)) for _ in range(2)
    ]
    await settle()
    # One of the first level waits, and no longer than it may; the other level's requests do not count.
    assert isinstance(await _error(urgent[1]), QueueFull)
    assert isinstance(await _error(urgent[0]), QueueTimeout)
    for _ in range(3):
        worker.finish()
        await settle()
    await asyncio.gather(busy, *ordinary)


@pytest.mark.asyncio
async def test_a_caller_without_a_task_gets_its_answer() -> None:
    service = Service()
    worker = service.worker()
    request = infer_request(MLP, service.rows(2))
    job = service.dispatcher.submit(request, service.clock.now_s + 60)
    worker.finish()
    assert job.future.done()
    assert service.dispatcher.take_answer(job) == _doubled(request)
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
@pytest.mark.parametrize("answered", [False, True])
async def test_a_caller_without_a_task_leaves(answered: bool) -> None:
    service = Service()
    worker = service.worker()
    job = service.dispatcher.submit(infer_request(MLP, service.rows(2)), service.clock.now_s + 60)
    if answered:
        worker.finish(Status.FAILED)
    service.dispatcher.abandon(job)
    if not answered:
        worker.finish()
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_deadline_while_the_batch_runs_ends_one_request_only() -> None:
    service = Service()
    worker = service.worker()
    mate_request = infer_request(MLP, service.rows(2))
    late, mate = await service.ask_together(worker, 3, mate_request, timeouts_s=[0.1])
    assert [sealed.rows for sealed in worker.sent] == [5]
    assert isinstance(await _error(late), DeadlineExceeded)
    assert not mate.done()
    worker.finish()
    assert (await mate)[0] == _doubled(mate_request)
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_the_worker_is_told_when_the_last_of_a_batch_stops_waiting() -> None:
    service = Service()
    worker = service.worker()
    tasks = await service.ask_together(worker, 1, 1, 1, timeouts_s=[3.0, 7.0, 5.0])
    assert worker.waiting[0].last_deadline_s == service.clock.now_s + 7.0
    worker.finish()
    await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_rows_of_a_lost_worker_run_on_another_before_what_waits() -> None:
    service = Service()
    worker = service.worker()
    requests = [infer_request(MLP, service.rows(rows)) for rows in (8, 3, 2)]
    tasks = [service.ask(request) for request in requests]
    await settle()
    other = FakeWorker(service.dispatcher, MODELS)
    worker.die()
    other.connect()
    await settle()
    assert [sealed.rows for sealed in other.sent] == [8]
    assert other.sent[0].works == worker.sent[0].works
    other.finish()
    await settle()
    other.finish()
    answers = [await task for task in tasks]
    assert [outputs for outputs, _ in answers] == list(map(_doubled, requests))
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_several_lost_batches_come_back_in_their_order() -> None:
    service = Service()
    worker = service.worker(slots=3)
    requests = [infer_request(MLP, service.rows(8)) for _ in range(3)]
    tasks = [service.ask(request) for request in requests]
    await settle()
    worker.die()
    other = service.worker(slots=3)
    await settle()
    assert [sealed.works for sealed in other.sent] == [sealed.works for sealed in worker.sent]
    for _ in tasks:
        other.finish()
    assert [(await task)[0] for task in tasks] == list(map(_doubled, requests))


@pytest.mark.asyncio
async def test_nobody_waits_for_lost_rows_whose_caller_left() -> None:
    service = Service()
    worker = service.worker()
    leaver, stays = service.ask(3), service.ask(2)
    late = service.ask(1, timeout_s=0.01)
    await settle()
    leaver.cancel()
    assert isinstance(await _error(late), DeadlineExceeded)
    worker.die()
    other = service.worker()
    await settle()
    assert [sealed.rows for sealed in other.sent] == [2]
    other.finish()
    await stays
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_rows_that_take_every_worker_down_are_given_up() -> None:
    service = Service()
    task = None
    for attempt in range(MAX_ATTEMPTS):
        worker = service.worker()
        task = task or service.ask(11)
        await settle()
        assert [sealed.rows for sealed in worker.sent] == [8], f"attempt {attempt}"
        assert not task.done()
        worker.die()
    assert task is not None
    error = await _error(task)
    assert isinstance(error, NoReplica)
    assert str(error) == "the workers that took these rows failed"
    # The piece that never ran goes with it.
    assert repr(service.dispatcher) == EMPTY
    after = service.worker()
    await settle()
    assert after.sent == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.FAILED, ComputeFailed), (Status.EXPIRED, DeadlineExceeded)],
)
async def test_a_refused_batch_is_refused_for_all_of_it(
    status: Status, error: type[ServiceError]
) -> None:
    service = Service()
    worker = service.worker()
    tasks = await service.ask_together(worker, 2, 3)
    worker.finish(status)
    for task in tasks:
        assert isinstance(await _error(task), error)
    after = service.ask(1)
    await settle()
    worker.finish()
    assert (await after)[1].batch_rows == 1
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_piece_that_fails_takes_the_rest_of_its_request_out() -> None:
    service = Service()
    worker = service.worker()
    split, mate = service.ask(30), service.ask(4)
    await settle()
    worker.finish(Status.FAILED)
    assert isinstance(await _error(split), ComputeFailed)
    while worker.waiting:
        worker.finish()
        await settle()
    assert (await mate)[1].batch_rows <= 8
    assert sum(sealed.rows for sealed in worker.sent) <= 8 + 8 + 4
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_a_piece_that_comes_back_twice_counts_once() -> None:
    request = infer_request(MLP, exact_rows(0, 10))
    future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
    job = Job(request, Limits(8, 100), future, 0.0, 1.0)
    done = DoneMessage(Status.OK, 0, 8, 0, 0.0, DEVICE_S, ())
    times = BatchTimes()
    job.piece_done(job.works[0], (b"first",), 8, done, times)
    job.piece_done(job.works[0], (b"again",), 8, done, times)
    assert not future.done()
    job.piece_done(job.works[1], (b"last",), 2, done, times)
    assert await future == (b"firstlast",)
    assert job.cost.batch_rows == 10


@pytest.mark.asyncio
async def test_a_drain_answers_what_was_accepted_and_takes_nothing_new() -> None:
    service = Service()
    worker = service.worker(max_queue_delay_s=60.0)
    await service.crowd(worker, 3)
    accepted = [service.ask(rows) for rows in (2, 3)]
    await settle()
    assert worker.sent == []
    drain = asyncio.create_task(service.dispatcher.drain(timeout_s=30))
    await settle()
    # Nothing waits for company any more.
    assert [(sealed.rows, sealed.trigger) for sealed in worker.sent] == [(5, Trigger.DRAIN)]
    assert isinstance(await _error(service.ask(1)), Draining)
    assert not drain.done()
    worker.finish()
    await asyncio.gather(*accepted)
    await asyncio.wait_for(drain, 1)
    assert service.dispatcher.draining


@pytest.mark.asyncio
async def test_an_idle_drain_is_over_at_once() -> None:
    service = Service()
    service.worker()
    await asyncio.wait_for(service.dispatcher.drain(timeout_s=30), 1)


@pytest.mark.asyncio
async def test_a_drain_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    worker = service.worker()
    task = service.ask(1)
    await settle()
    await service.dispatcher.drain(timeout_s=0.01)
    assert "drain timed out with 1 requests unanswered" in caplog.text
    worker.finish()
    await task


@pytest.mark.asyncio
async def test_without_a_worker_nothing_is_accepted() -> None:
    service = Service()
    worker = service.worker()
    assert service.dispatcher.is_ready("ffn")
    worker.die()
    assert not service.dispatcher.is_ready("ffn")
    assert isinstance(await _error(service.ask(1)), NoReplica)
    assert repr(service.dispatcher) == EMPTY


@pytest.mark.asyncio
async def test_the_queue_is_bounded_by_rows() -> None:
    service = Service()
    worker = service.worker(max_queue_rows=10)
    running = service.ask(8)
    await settle()
    waiting = [service.ask(6), service.ask(4)]
    await settle()
    assert isinstance(await _error(service.ask(1)), QueueFull)
    assert isinstance(await _error(service.ask(11)), InvalidRequest)
    # Another model has a queue of its own.
    other = service.ask(infer_request(DEEP, service.rows(1), layer=2))
    # A caller that leaves makes room.
    waiting[0].cancel()
    await settle()
    late = service.ask(6)
    await settle()
    while worker.waiting:
        worker.finish()
        await settle()
    await asyncio.gather(running, waiting[1], other, late)
    assert sum(sealed.rows for sealed in worker.sent) == 8 + 4 + 1 + 6


@pytest.mark.asyncio
async def test_no_time_left_on_arrival() -> None:
    service = Service()
    worker = service.worker()
    assert isinstance(await _error(service.ask(1, timeout_s=0.0)), DeadlineExceeded)
    assert worker.sent == []


@pytest.mark.asyncio
async def test_the_freest_worker_takes_the_next_batch() -> None:
    service = Service()
    small, large = service.worker(slots=1), service.worker(slots=3)
    tasks = [service.ask(8) for _ in range(4)]
    await settle()
    assert (len(small.sent), len(large.sent)) == (1, 3)
    for worker in (small, large, large, large):
        worker.finish()
    await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_each_worker_gets_only_models_that_it_serves() -> None:
    service = Service()
    deep = FakeWorker(service.dispatcher, {"deep": DEEP}, slots=4)
    ffn = FakeWorker(service.dispatcher, {"ffn": MLP}, slots=1)
    deep.connect()
    ffn.connect()
    tasks = [service.ask(8), service.ask(8), service.ask(infer_request(DEEP, service.rows(1)))]
    await settle()
    assert [sealed.key.model for sealed in deep.sent] == ["deep"]
    assert [sealed.key.model for sealed in ffn.sent] == ["ffn"]
    deep.finish()
    ffn.finish()
    await settle()
    ffn.finish()
    await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_rows_that_wait_for_company_are_sent_without_any() -> None:
    service = Service()
    worker = service.worker(max_queue_delay_s=0.01)
    await service.crowd(worker, 3)
    task = service.ask(2)
    await settle()
    assert worker.sent == []
    service.clock.now_s += 0.01
    await asyncio.wait_for(worker.got_batch.wait(), 5)
    assert [(sealed.rows, sealed.trigger) for sealed in worker.sent] == [(2, Trigger.TIMEOUT)]
    worker.finish()
    await task


@pytest.mark.asyncio
async def test_a_deadline_beyond_any_clock_is_no_deadline() -> None:
    service = Service()
    worker = service.worker()
    task = service.ask(1, timeout_s=1e300)
    await settle()
    worker.finish()
    assert (await task)[1].batch_rows == 1


asked = st.tuples(
    st.sampled_from([MLP, DEEP, ANY_WIDTH, PAIR]),
    st.integers(1, 30),
    st.sampled_from(list(Datatype)),
    st.sampled_from([0, 2]),
)
events = st.lists(
    st.tuples(st.sampled_from(["finish", "finish", "cancel", "ask"]), st.integers(0, 63)),
    max_size=30,
)


async def _play(
    requests: list[tuple[Any, int, Datatype, int]],
    script: list[tuple[str, int]],
    workers: int,
    deaths: list[int],
) -> None:
    service = Service()
    crew = [service.worker(slots=2) for _ in range(workers)]
    todo = list(requests)
    tasks: list[tuple[asyncio.Task[Answer], Outputs]] = []

    def ask(_: int) -> None:
        if todo:
            model, rows, datatype, layer = todo.pop()
            columns = 3 + layer if model in (ANY_WIDTH, PAIR) else 3
            inputs = [service.rows(rows, columns) for _ in model.inputs]
            request = infer_request(
                model, np.stack(inputs), datatype, layer if model is DEEP else 0
            )
            tasks.append((service.ask(request), tuple(encode(2 * x, datatype) for x in inputs)))

    def cancel(number: int) -> None:
        if tasks:
            tasks[number % len(tasks)][0].cancel()

    def finish(number: int) -> None:
        worker = crew[number % len(crew)]
        if worker.waiting:
            worker.finish(position=number % len(worker.waiting))

    actions: dict[str, Callable[[int], None]] = {"ask": ask, "cancel": cancel, "finish": finish}
    for step, (name, number) in enumerate(script):
        actions[name](number)
        if number % 2:
            await settle()
        if step in deaths:
            crew.pop(number % len(crew)).die()
            crew.append(service.worker(slots=2))
    while todo:
        ask(0)
    await settle()
    while any(worker.waiting for worker in crew):
        for number in range(len(crew)):
            finish(number)
        await settle()
    for task, expected in tasks:
        if not task.cancelled():
            assert task.result()[0] == expected
    assert repr(service.dispatcher) == EMPTY


@settings(max_examples=120, deadline=None)
@given(
    requests=st.lists(asked, min_size=1, max_size=10),
    script=events,
    workers=st.integers(1, 3),
    # Fewer deaths than MAX_ATTEMPTS: nobody is given up.
    deaths=st.lists(st.integers(0, 29), max_size=MAX_ATTEMPTS - 1),
)
def test_whatever_happens_each_caller_gets_its_own_rows(
    requests: list[tuple[Any, int, Datatype, int]],
    script: list[tuple[str, int]],
    workers: int,
    deaths: list[int],
) -> None:
    asyncio.run(_play(requests, script, workers, deaths))
