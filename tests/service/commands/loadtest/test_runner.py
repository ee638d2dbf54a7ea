"""The sending loop, against a server in the same event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from gatefuse.commands.loadtest.pacer import Pacer
from gatefuse.commands.loadtest.runner import Runner, connect
from gatefuse_protos import open_inference_pb2 as pb

Handler = Callable[[bytes, Any], Awaitable[bytes]]
REQUESTS = [b"a", b"bb", b"ccc"]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(handler)
    handlers = grpc.method_handlers_generic_handler(pb.SERVICE_NAME, {"ModelInfer": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def sending(
    handler: Handler, timeout_s: float = 5.0, connections: int = 1
) -> AsyncIterator[Runner]:
    answers: list[tuple[int, bytes]] = []
    async with served(handler) as url:
        channels = await connect(url, connections, 5.0)
        runner = Runner(
            channels,
            REQUESTS,
            timeout_s,
            lambda number, answer, _: answers.append((number, answer)),
        )
        yield runner
        await asyncio.gather(*(channel.close() for channel in channels))
    # Whatever else a test looks at: each answer belongs to its request.
    assert all(answer == REQUESTS[number] for number, answer in answers)
    assert len(answers) == len(runner.samples.done_s)


async def _echo(request: bytes, context: Any) -> bytes:
    return request


@pytest.mark.asyncio
async def test_closed_loop_keeps_so_many_under_way() -> None:
    under_way, most = 0, 0

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return request

    async with sending(handler, connections=2) as runner:
        end_s = time.monotonic() + 0.3
        await runner.closed_loop(4, end_s)
    assert most == 4
    samples = runner.samples
    assert samples.latencies_s(0, np.inf).min() >= 0.004
    assert max(samples.due_s) < end_s
    assert not samples.errors


@pytest.mark.asyncio
async def test_window_counts_answers_by_when_they_came() -> None:
    async with sending(_echo) as runner:
        await runner.closed_loop(1, time.monotonic() + 0.1)
    samples = runner.samples
    cut = samples.done_s[len(samples.done_s) // 2]
    before, after = samples.latencies_s(0, cut), samples.latencies_s(cut, np.inf)
    assert before.size == len(samples.done_s) // 2
    assert before.size + after.size == len(samples.done_s)


@pytest.mark.asyncio
async def test_errors_are_counted_by_status() -> None:
    calls = 0

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls % 2:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        return request

    async with sending(handler) as runner:
        await runner.closed_loop(2, time.monotonic() + 0.2)
    assert runner.samples.errors["RESOURCE_EXHAUSTED"] == (calls + 1) // 2
    assert runner.samples.error_text == "full"


@pytest.mark.asyncio
async def test_deadline_ends_a_request() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(60)
        return request

    async with sending(handler, timeout_s=0.1) as runner:
        await runner.closed_loop(1, time.monotonic() + 0.05)
    assert runner.samples.errors == {"DEADLINE_EXCEEDED": 1}


@pytest.mark.asyncio
async def test_open_loop_sends_by_the_clock() -> None:
    async with sending(_echo) as runner:
        due_s = np.linspace(time.monotonic() + 0.05, time.monotonic() + 0.25, 40)
        await runner.open_loop(due_s, 100)
    np.testing.assert_array_equal(np.sort(runner.samples.due_s), due_s)
    assert runner.samples.unsent == 0


@pytest.mark.asyncio
async def test_open_loop_does_not_hide_a_stall_of_the_server() -> None:
    busy = asyncio.Lock()
    first = True

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal first
        async with busy:
            if first:
                first = False
                await asyncio.sleep(0.3)
            return request

    async with sending(handler) as runner:
        due_s = np.linspace(time.monotonic() + 0.02, time.monotonic() + 0.31, 30)
        await runner.open_loop(due_s, 100)
    # Requests due during the stall waited for its end: on average half of it. A closed loop would have seen one.
    latencies_s = runner.samples.latencies_s(0, np.inf)
    assert latencies_s.size == 30
    assert np.count_nonzero(latencies_s > 0.1) >= 15


@pytest.mark.asyncio
async def test_open_loop_bounds_what_is_under_way_and_counts_the_wait() -> None:
    under_way, most = 0, 0

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return request

    async with sending(handler) as runner:
        due_s = np.full(20, time.monotonic())
        await runner.open_loop(due_s, 2)
    assert most == 2
    latencies_s = runner.samples.latencies_s(0, np.inf)
    assert latencies_s.size == 20
    assert latencies_s.max() > 0.15


@pytest.mark.asyncio
async def test_open_loop_drops_what_is_late_by_a_deadline() -> None:
    async with sending(_echo, timeout_s=0.5) as runner:
        now = time.monotonic()
        await runner.open_loop(np.array([now - 2, now - 1, now]), 10)
    assert runner.samples.unsent == 2
    assert len(runner.samples.done_s) == 1


@pytest.mark.asyncio
async def test_pacer_is_never_early_and_hardly_late() -> None:
    pacer = Pacer()
    lates_s = []
    try:
        for step in range(1, 41):
            instant_s = time.monotonic() + 0.0003 * step
            await pacer.wait_until(instant_s)
            lates_s.append(time.monotonic() - instant_s)
        await pacer.wait_until(time.monotonic() - 1)
    finally:
        pacer.close()
    assert min(lates_s) >= 0
    # The best of many: how late the others are is the machine's doing. asyncio's own timers are a millisecond apart.
    assert min(lates_s) < 0.0005


@pytest.mark.asyncio
async def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(TimeoutError, match=r"no connection to 127\.0\.0\.1:1 within 0\.2 s"):
        await connect("127.0.0.1:1", 2, 0.2)
