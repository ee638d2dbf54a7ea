"""What becomes of shared memory and of what a client knows of models, in each of the four ways to ask."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.service.either_client import WAYS, Either, connected
from tests.service.sharing_server import SHM, Code, Refusal, SharingServer, sharing_server

from gatefuse.client import memory
from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client
from gatefuse.client.memory import FROM_BYTES
from gatefuse.client.messages import InferenceError
from gatefuse.client.transport import sharing as sharing_module
from gatefuse.client.transport.connection import Connection

LARGE: NDArray[np.float32] = np.arange(300 * 256, dtype=np.float32).reshape(300, 256)
SMALL = LARGE[:2]
assert LARGE.nbytes >= FROM_BYTES

Connect = Callable[..., Either]


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with sharing_server() as server:
        yield server


@pytest.fixture(params=WAYS)
def connect(request: pytest.FixtureRequest, server: SharingServer) -> Iterator[Connect]:
    made: list[Either] = []

    def connect(**options: Any) -> Either:
        made.append(connected(request.param, server.url, **{"timeout_s": 10, **options}))
        return made[-1]

    yield connect
    for client in made:
        client.end()


def _wait_for_regions(server: SharingServer, count: int) -> None:
    while len(server.regions) < count:
        time.sleep(0.01)


def _ours() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"gatefuse-{os.getpid()}-*")]


def _check(client: Either, x: NDArray[np.float32] = LARGE) -> None:
    np.testing.assert_array_equal(client.infer("m", x).outputs["y"], x + 1)


@pytest.mark.parametrize("way", ["blocking", "asyncio"])
@pytest.mark.parametrize("pushback_ms", [None, 1])
def test_memory_of_a_request_that_was_tried_again(
    server: SharingServer, way: str, pushback_ms: int | None
) -> None:
    """The first attempt may still be under way where the server did not refuse it: it may write at any time."""
    with ExitStack() as stack:
        client = connected(way, server.url, timeout_s=10)
        stack.callback(client.end)
        _check(client)
        (first,) = set(server.regions_used)
        server.refusals.append(Refusal(Code.UNAVAILABLE, "away", pushback_ms))
        server.regions_used.clear()
        _check(client)
        assert server.on_the_wire == (1 if pushback_ms is None else 0)
        _check(client, LARGE * 2)
        assert (first in server.regions_used) is (pushback_ms is not None)


@pytest.mark.parametrize("way", WAYS)
def test_closing_leaves_no_region_anywhere(server: SharingServer, way: str) -> None:
    for _ in range(3):
        client = connected(way, server.url, timeout_s=10)
        _check(client)
        assert (len(server.regions), len(_ours())) == (1, 1)
        client.end()
        assert (server.regions, _ours()) == ({}, [])


def test_closing_without_the_server(server: SharingServer, connect: Connect) -> None:
    client = connect()
    _check(client)
    server.delays_s["SystemSharedMemoryUnregister"] = 3
    begun_s = time.monotonic()
    client.close()
    assert time.monotonic() - begun_s < 2.5
    assert not _ours()


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_while_it_registers(server: SharingServer) -> None:
    async with AioClient(server.url, timeout_s=10) as client:
        server.delays_s["answer to register"] = 0.5
        task = asyncio.create_task(client.infer("m", LARGE))
        await asyncio.to_thread(_wait_for_regions, server, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not _ours()
        server.delays_s.clear()
        assert (await client.infer("m", LARGE)).output[0, 0] == 1
        assert len(server.regions) == 1, "the next to register tells of the one that was given up"
        server.delays_s["answer to register"] = 0.5
        tasks = [asyncio.create_task(client.infer("m", k * LARGE)) for k in range(3)]
        await asyncio.to_thread(_wait_for_regions, server, 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.delays_s.clear()
    assert server.regions == {}


def test_memory_that_the_server_lost(server: SharingServer, connect: Connect) -> None:
    client = connect()
    _check(client)
    server.regions.clear()
    _check(client)
    assert server.on_the_wire == 1
    _check(client)
    assert server.on_the_wire == 1, "memory is made anew"


def test_rows_are_sent_again_as_they_were(server: SharingServer) -> None:
    with Client(server.url, timeout_s=10) as client, client.stream() as stream:
        stream.infer("m", LARGE).result(10)
        server.regions.clear()
        server.delays_s["ModelInfer"] = 0.2
        x = LARGE.copy()
        future = stream.infer("m", x)
        x[:] = -1
        np.testing.assert_array_equal(future.result(10).output, LARGE + 1)
        server.regions.clear()
        last = stream.infer("m", LARGE)
    np.testing.assert_array_equal(last.result(0).output, LARGE + 1)


def test_memory_that_the_server_allows_no_more(server: SharingServer, connect: Connect) -> None:
    client = connect()
    _check(client)
    server.allows = False
    _check(client)
    _check(client)
    assert server.on_the_wire == 2


def test_a_callers_own_mistake_costs_nobody_anything(
    server: SharingServer, connect: Connect
) -> None:
    client = connect()
    _check(client)
    server.calls.clear()
    for arguments in ({"layer": 99}, {"layer": 99, "outputs": ["y"]}):
        with pytest.raises(InferenceError, match="NOT_FOUND: no such model or layer"):
            client.infer("m", SMALL, **arguments)
        with pytest.raises(InferenceError, match="NOT_FOUND"):
            client.infer("m", LARGE, **arguments)
    assert server.calls.count("ModelInfer") == 4, "once each"
    _check(client)
    assert server.on_the_wire == 0


def test_a_model_with_another_input(server: SharingServer, connect: Connect) -> None:
    client = connect()
    for x in (SMALL, LARGE):
        _check(client, x)
        server.input += "x"
        server.calls.clear()
        for _ in range(2):
            _check(client, x)
        # Once in vain, once for the new name; then it is known.
        assert server.calls.count("ModelInfer") == 3
        assert server.calls.count("ModelMetadata") == 1


def test_a_model_with_other_outputs(server: SharingServer, connect: Connect) -> None:
    client = connect()
    _check(client)
    server.outputs = ["y", "z"]
    for _ in range(2):
        outputs = client.infer("m", LARGE).outputs
        assert list(outputs) == ["y", "z"], "no output is missing"
        np.testing.assert_array_equal(outputs["z"], LARGE + 2)
    server.outputs = ["a", "b", "c"]
    for _ in range(2):
        outputs = client.infer("m", LARGE).outputs
        assert list(outputs) == ["a", "b", "c"]
        np.testing.assert_array_equal(outputs["c"], LARGE + 3)
    assert list(client.infer("m", LARGE, outputs=["b"]).outputs) == ["b"]


def test_a_wrong_request_is_sent_once(server: SharingServer, connect: Connect) -> None:
    client = connect()
    _check(client, SMALL)
    server.calls.clear()
    with pytest.raises(InferenceError, match="no output"):
        client.infer("m", SMALL, outputs=["none"])
    assert server.calls.count("ModelInfer") == 1


def test_a_model_that_changes_between_its_look_up_and_the_request(
    server: SharingServer, connect: Connect
) -> None:
    client = connect()
    server.delays_s["ModelInfer"] = 0.5
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.infer, "m", SMALL)
        while "ModelInfer" not in server.calls:
            time.sleep(0.01)
        server.input = "renamed"
        np.testing.assert_array_equal(answer.result(10).output, SMALL + 1)
    assert server.calls == ["ModelMetadata", "ModelInfer"] * 2


def test_one_that_cannot_register_now_gets_a_message(
    server: SharingServer, connect: Connect
) -> None:
    client = connect()
    server.registering = Refusal(Code.UNAVAILABLE, "not now")
    begun_s = time.monotonic()
    _check(client)
    assert time.monotonic() - begun_s < 2
    assert server.calls.count("SystemSharedMemoryRegister") == 1
    assert server.on_the_wire == 1


def test_memory_that_must_be_is_made_for_each_request_in_flight(
    server: SharingServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_REGIONS", 1)
    client = connect(shared_memory="on")
    server.delays_s["ModelInfer"] = 0.5
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(client.infer, "m", SMALL + k) for k in range(3)]
        for k, answer in enumerate(answers):
            np.testing.assert_array_equal(answer.result(10).output, SMALL + k + 1)
    assert server.calls.count("SystemSharedMemoryRegister") == 3
    assert (server.on_the_wire, len(_ours())) == (0, 1)


def test_a_refusal_that_passes(
    server: SharingServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    monkeypatch.setattr(sharing_module, "REST_S", 0.5)
    server.registering = Refusal(Code.INVALID_ARGUMENT, "4096 regions are registered")
    _check(client)
    server.registering = None
    _check(client)
    assert server.calls.count("SystemSharedMemoryRegister") == 1, "not at once"
    time.sleep(0.6)
    _check(client)
    assert len(server.regions) == 1
    assert server.on_the_wire == 2


@pytest.mark.parametrize(
    "slow", ["ModelMetadata", "SystemSharedMemoryRegister", "ModelInfer"], ids=str
)
def test_one_deadline_for_the_whole_call(
    server: SharingServer, connect: Connect, slow: str
) -> None:
    client = connect()
    server.delays_s[slow] = 2.0
    begun_s = time.monotonic()
    with pytest.raises(InferenceError) as caught:
        client.infer("m", LARGE, timeout_s=0.4)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.3 < time.monotonic() - begun_s < 1.2
    # A request that is sent when its time is over might even be answered.
    assert ("ModelInfer" in server.calls) is (slow == "ModelInfer")


def test_a_late_request_is_not_sent_however_late_its_deadline_is_noticed(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the answer may be there before the thread that keeps deadlines runs."""
    monkeypatch.setattr(Connection, "_watch", lambda self: None)
    server.delays_s["SystemSharedMemoryRegister"] = 1.0
    with (
        Client(server.url) as client,
        client.stream() as stream,
        pytest.raises(InferenceError) as caught,
    ):
        stream.infer("m", LARGE, timeout_s=0.3).result(5)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_second_attempt_has_what_is_left(server: SharingServer, connect: Connect) -> None:
    client = connect()
    _check(client)
    server.regions.clear()
    server.delays_s["ModelInfer"] = 0.7
    begun_s = time.monotonic()
    with pytest.raises(InferenceError) as caught:
        client.infer("m", LARGE, timeout_s=1.0)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - begun_s < 1.6, "two whole timeouts would be 1.7"


@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["message", "memory"])
def test_calls_in_flight_when_the_client_is_closed(
    server: SharingServer, connect: Connect, x: NDArray[np.float32]
) -> None:
    client = connect()
    _check(client, x)
    server.delays_s["ModelInfer"] = 1.0
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            client.infer("m", x)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    client.close(with_stream=False)
    for thread in threads:
        thread.join(5)
    assert [type(error) for error in errors] == [InferenceError] * 3
    assert {error.code for error in errors if isinstance(error, InferenceError)} == {
        grpc.StatusCode.CANCELLED
    }
    assert (server.regions, _ours()) == ({}, [])


@pytest.mark.asyncio
async def test_a_cancelled_task_is_cancelled(server: SharingServer) -> None:
    async with AioClient(server.url, timeout_s=10) as client:
        server.delays_s["ModelInfer"] = 0.5
        task = asyncio.create_task(client.infer("m", SMALL))
        left = asyncio.create_task(client.infer("m", SMALL))
        await asyncio.sleep(0.1)
        task.cancel()
        await client.close()
        answers = await asyncio.gather(task, left, return_exceptions=True)
    assert task.cancelled()
    assert not left.cancelled()
    assert isinstance(answers[1], InferenceError)


FORKED = """
import os, sys
import numpy as np
import gatefuse

x = np.ones((300, 256), np.float32)
client = gatefuse.Client(sys.argv[1], timeout_s=10)
client.infer("m", x)
pid = os.fork()
value = 1 if pid else 7
wrong = sum(not np.all(client.infer("m", value * x).output == value + 1) for _ in range(300))
with client.stream() as stream:
    wrong += not np.all(stream.infer("m", value * x).result(10).output == value + 1)
client.close()
print("parent" if pid else "child", wrong, flush=True)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
"""


def _run(script: str, url: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, url], capture_output=True, text=True, check=True, timeout=60
    )
    return sorted(done.stdout.splitlines())


def test_a_forked_child_has_memory_of_its_own(server: SharingServer) -> None:
    assert _run(FORKED, server.url) == ["child 0", "parent 0"]
    assert server.regions == {}


CHILD = """
import multiprocessing, sys
import numpy as np
import gatefuse

def use(url):
    global client
    client = gatefuse.Client(url, timeout_s=10)
    client.infer("m", np.ones((300, 256), np.float32))

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=use, args=(sys.argv[1],))
    child.start()
    child.join()
    use(sys.argv[1])
"""


def test_clients_that_nobody_closes_leave_no_files(server: SharingServer) -> None:
    assert _run(CHILD, server.url) == []
    assert len(server.regions) == 2
    assert not [key for key in server.regions.values() if (SHM / key[1:]).exists()]


FORKED_STREAM = """
import os, sys
import numpy as np
import gatefuse

x = np.ones((300, 256), np.float32)
with gatefuse.Client(sys.argv[1], timeout_s=10) as client, client.stream() as stream:
    stream.infer("m", x).result(10)
    pid = os.fork()
    if pid == 0:
        try:
            stream.infer("m", x)
        except RuntimeError as error:
            print(error, flush=True)
        stream.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert np.all(stream.infer("m", x).result(10).output == 2)
"""


def test_a_forked_child_is_told_what_it_cannot_use(server: SharingServer) -> None:
    text = "belongs to the process that this one was forked from"
    assert _run(FORKED_STREAM, server.url) == [f"this stream {text}"]
    assert server.regions == {}


@pytest.mark.asyncio
async def test_a_forked_child_is_told_that_an_asyncio_client_is_not_its_own(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another process by its number alone: gRPC does not survive a real fork with a call open, now and then."""
    x = np.ones((300, 256), np.float32)
    text = "this client belongs to the process that this one was forked from"
    async with AioClient(server.url, timeout_s=10) as client, client.stream() as stream:
        await client.infer("m", x)
        with monkeypatch.context() as child:
            child.setattr("gatefuse.client.forking.os.getpid", lambda: -1)
            for caller in (client, stream):
                with pytest.raises(RuntimeError, match=text):
                    await caller.infer("m", x)
        assert np.all((await client.infer("m", x)).output == 2)
        assert np.all((await stream.infer("m", x)).output == 2)
    # What was let go of meanwhile seemed to be the parent's.
    for name in _ours():
        (SHM / name).unlink()
