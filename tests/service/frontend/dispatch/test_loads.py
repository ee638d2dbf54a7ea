"""Two loads of one model at once: each request stays with the load that it was checked against."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.service.fakes import MLP, FakeWorker, exact_rows, infer_request

from gatefuse.errors import NoReplica
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype, decode

LATER = replace(MLP, index=9, generation=1, dtype="fp32", max_batch_rows=3)
BOTH = {model.key: model for model in (MLP, LATER)}


class Bed:
    """A dispatcher whose worker has both loads."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher(self.loop)
        self.worker = FakeWorker(self.dispatcher, BOTH)
        self.dispatcher.choose({"ffn": MLP.key})
        self.worker.connect()

    def ask(self, model: ServedModel, rows: int = 2) -> asyncio.Task[np.ndarray]:
        """Rows of exact values; the answer is their double."""

        async def answer() -> np.ndarray:
            request = infer_request(model, exact_rows(0, rows))
            outputs, _ = await self.dispatcher.infer(request, self.loop.time() + 60)
            return decode(outputs[0], Datatype.FP32, (rows, 3))

        return asyncio.create_task(answer())


async def _settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_names_tell_loads_apart() -> None:
    assert (MLP.key, LATER.key) == ("ffn", "ffn@1")


@pytest.mark.asyncio
async def test_requests_get_the_chosen_load() -> None:
    bed = Bed()
    assert bed.dispatcher.models["ffn"] is MLP
    bed.dispatcher.choose({"ffn": LATER.key})
    assert bed.dispatcher.models["ffn"] is LATER
    assert bed.dispatcher.is_ready("ffn")
    bed.dispatcher.choose({})
    assert not bed.dispatcher.models
    assert not bed.dispatcher.is_ready("ffn")


@pytest.mark.asyncio
async def test_rows_of_two_loads_share_no_batch_and_both_are_answered() -> None:
    bed = Bed()
    busy = bed.ask(MLP, 8)
    await _settle()
    old = [bed.ask(MLP) for _ in range(2)]
    await _settle()
    bed.dispatcher.choose({"ffn": LATER.key})
    new = [bed.ask(LATER, 1) for _ in range(2)]
    await _settle()
    while not all(task.done() for task in (busy, *old, *new)):
        bed.worker.finish()
        await _settle()
    for task in old:
        np.testing.assert_array_equal(await task, 2 * exact_rows(0, 2))
    for task in new:
        np.testing.assert_array_equal(await task, 2 * exact_rows(0, 1))
    assert [(each.key.model, each.rows) for each in bed.worker.sent] == [
        ("ffn", 8), ("ffn", 4), ("ffn@1", 2),
    ]  # fmt: skip


@pytest.mark.asyncio
async def test_an_old_load_is_finished_when_its_last_request_is_answered() -> None:
    bed = Bed()
    old = bed.ask(MLP)
    await _settle()
    bed.dispatcher.choose({"ffn": LATER.key})
    finished = asyncio.create_task(bed.dispatcher.finish(MLP.key, 60))
    new = bed.ask(LATER)
    await asyncio.sleep(0.05)
    assert not finished.done()
    bed.worker.finish()
    await old
    await asyncio.wait_for(finished, 5)
    assert not new.done()
    bed.worker.finish()
    await new
    with pytest.raises(NoReplica, match="was unloaded"):
        await bed.ask(MLP)


@pytest.mark.asyncio
async def test_requests_that_do_not_end_are_refused_in_the_end() -> None:
    bed = Bed()
    stuck = bed.ask(MLP)
    await _settle()
    await asyncio.wait_for(bed.dispatcher.finish(MLP.key, 0.02), 5)
    with pytest.raises(NoReplica, match="was unloaded"):
        await stuck
    # Its batch comes back when nobody knows of it any more.
    bed.worker.finish()
    bed.dispatcher.choose({"ffn": LATER.key})
    new = bed.ask(LATER)
    await _settle()
    bed.worker.finish()
    np.testing.assert_array_equal(await new, 2 * exact_rows(0, 2))


@pytest.mark.asyncio
async def test_a_worker_that_comes_back_changes_nothing_of_the_choice() -> None:
    bed = Bed()
    bed.dispatcher.choose({"ffn": LATER.key})
    bed.worker.die()
    FakeWorker(bed.dispatcher, BOTH).connect()
    assert bed.dispatcher.models["ffn"] is LATER
