"""Clients' shared memory on a running server of two frontends, through tritonclient's own utilities."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from numpy.typing import NDArray
from tests.integration.harness import Service, Start, free_port, wait_until
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client as OurClient
from gatefuse.client.messages import InferenceError

ROWS, COLUMNS = 5, 7
BYTES = ROWS * COLUMNS * 4
# Each has a connection of its own, and the kernel spreads them over the frontends.
CHANNELS = 12


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    gate = {
        "name": "gate",
        "kind": "elementwise",
        "expression": "y = max(a, b) - b; z = a - 2 * b",
        "backend": "eager",
        "dtype": "fp32",
        "max_columns": 65536,
        # Larger requests travel in pieces.
        "batching": {"max_batch_rows": 4},
    }
    return start(
        {
            "device": "cpu",
            "frontends": 2,
            "grpc_port": free_port(),
            "allow_client_shm": True,
            "models": [gate],
        }
    )


@pytest.fixture
def clients(service: Service) -> Iterator[list[Client]]:
    made = [
        Client(service.url, channel_args=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CHANNELS)
    ]
    yield made
    made[0].unregister_system_shared_memory()
    for client in made:
        client.close()


class Memory:
    """A region of tritonclient's."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.key = f"/gatefuse-{os.getpid()}-{name}"
        self.handle = shm.create_shared_memory_region(name, self.key, size, create_only=True)

    def register(self, client: Client) -> None:
        client.register_system_shared_memory(self.name, self.key, self.size)

    def array(self, offset: int = 0, shape: tuple[int, int] = (ROWS, COLUMNS)) -> NDArray[Any]:
        found: NDArray[Any] = shm.get_contents_as_numpy(self.handle, np.float32, shape, offset)
        return found


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory("rows", 4 * BYTES)
    yield made
    shm.destroy_shared_memory_region(made.handle)


def _rows(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def _input(name: str) -> tritonclient.grpc.InferInput:
    return tritonclient.grpc.InferInput(name, [ROWS, COLUMNS], "FP32")


def _inputs(region: str = "rows") -> list[tritonclient.grpc.InferInput]:
    """Input a at the region's beginning and b behind it."""
    a, b = _input("a"), _input("b")
    a.set_shared_memory(region, BYTES)
    b.set_shared_memory(region, BYTES, offset=BYTES)
    return [b, a]


def _output(name: str, offset: int, size: int = BYTES) -> tritonclient.grpc.InferRequestedOutput:
    wanted = tritonclient.grpc.InferRequestedOutput(name)
    wanted.set_shared_memory("rows", size, offset=offset)
    return wanted


def test_every_frontend_reads_and_writes_what_one_registered(
    clients: list[Client], memory: Memory
) -> None:
    memory.register(clients[0])
    for number, client in enumerate(clients):
        a, b = _rows(2 * number), _rows(2 * number + 1)
        shm.set_shared_memory_region(memory.handle, [a, b, np.zeros(2 * a.size, np.float32)])
        outputs = [_output("z", 2 * BYTES), _output("y", 3 * BYTES)]
        answer = client.infer("gate", _inputs(), outputs=outputs).get_response()
        assert list(answer.raw_output_contents) == [b"", b""]
        np.testing.assert_array_equal(memory.array(2 * BYTES), a - 2 * b)
        np.testing.assert_array_equal(memory.array(3 * BYTES), np.maximum(a, b) - b)
        status = client.get_system_shared_memory_status("rows").regions["rows"]
        assert (status.name, status.key, status.byte_size) == ("rows", memory.key, 4 * BYTES)


def test_memory_and_message_mixed(clients: list[Client], memory: Memory) -> None:
    memory.register(clients[0])
    a, b = _rows(1), _rows(2)
    shm.set_shared_memory_region(memory.handle, [a])
    there, here = _input("a"), _input("b").set_data_from_numpy(b)
    there.set_shared_memory("rows", BYTES)
    for inputs in ([there, here], [here, there]):
        wanted = [tritonclient.grpc.InferRequestedOutput("y"), _output("z", 2 * BYTES)]
        answer = clients[1].infer("gate", inputs, outputs=wanted)
        np.testing.assert_array_equal(answer.as_numpy("y"), np.maximum(a, b) - b)
        np.testing.assert_array_equal(memory.array(2 * BYTES), a - 2 * b)


def test_registrations_that_cannot_be(clients: list[Client], memory: Memory) -> None:
    memory.register(clients[0])
    register = clients[1].register_system_shared_memory
    for arguments, status in (
        (("rows", memory.key, BYTES), "ALREADY_EXISTS"),
        (("other", memory.key, 2**40), "INVALID_ARGUMENT"),
        (("other", memory.key, BYTES, 2**63), "INVALID_ARGUMENT"),
        (("other", memory.key, 0), "INVALID_ARGUMENT"),
        (("other", "/../etc/passwd", 1), "INVALID_ARGUMENT"),
        (("other", "/no-such-object", 1), "INVALID_ARGUMENT"),
        (("", memory.key, 1), "INVALID_ARGUMENT"),
    ):
        with pytest.raises(InferenceServerException) as refused:
            register(*arguments)
        assert refused.value.status() == f"StatusCode.{status}", arguments
    assert set(clients[2].get_system_shared_memory_status().regions) == {"rows"}


def test_requests_that_cannot_be(clients: list[Client], memory: Memory) -> None:
    memory.register(clients[0])
    beyond = _inputs()
    beyond[0].set_shared_memory("rows", BYTES, offset=3 * BYTES + 1)
    for inputs, outputs, status, text in (
        (_inputs("none"), None, "NOT_FOUND", "none"),
        (beyond, None, "INVALID_ARGUMENT", "region 'rows'"),
        (_inputs(), [_output("y", 0, BYTES - 1)], "INVALID_ARGUMENT", "region 'rows'"),
    ):
        with pytest.raises(InferenceServerException, match=text) as refused:
            clients[1].infer("gate", inputs, outputs=outputs)
        assert refused.value.status() == f"StatusCode.{status}"
    with pytest.raises(InferenceServerException) as unknown:
        clients[1].get_system_shared_memory_status("none")
    assert unknown.value.status() == "StatusCode.NOT_FOUND"


def test_unregistered_everywhere_and_closed(
    service: Service, clients: list[Client], memory: Memory
) -> None:
    memory.register(clients[0])
    for client in clients:
        client.infer("gate", _inputs())

    def open_there() -> list[int]:
        path = Path("/dev/shm") / memory.key[1:]
        return [
            pid
            for pid in service.frontend_pids()
            if any(file.path == str(path) for file in psutil.Process(pid).open_files())
        ]

    assert open_there()
    clients[1].unregister_system_shared_memory("rows")
    clients[1].unregister_system_shared_memory("rows")
    for client in clients:
        with pytest.raises(InferenceServerException) as unknown:
            client.infer("gate", _inputs())
        assert unknown.value.status() == "StatusCode.NOT_FOUND"
    wait_until(lambda: not open_there(), 5, "the frontends close the memory")


def test_clients_that_take_their_memory_away(
    service: Service, clients: list[Client], memory: Memory
) -> None:
    """Shortened, changed and unregistered while requests are in flight: errors at worst, and everybody lives."""
    alive = sorted(service.frontend_pids() + service.worker_pids())
    stop = threading.Event()
    path = Path("/dev/shm") / memory.key[1:]
    statuses: set[str] = set()

    def ask(client: Client) -> None:
        while not stop.is_set():
            try:
                client.infer("gate", _inputs(), outputs=[_output("y", 2 * BYTES)])
            except InferenceServerException as error:
                statuses.add(str(error.status()))

    asking = [threading.Thread(target=ask, args=(client,)) for client in clients[:4]]
    for thread in asking:
        thread.start()
    for _ in range(100):
        memory.register(clients[4])
        os.truncate(path, BYTES // 2)
        os.truncate(path, 4 * BYTES)
        clients[5].unregister_system_shared_memory("rows")
    stop.set()
    for thread in asking:
        thread.join()
    assert statuses <= {"StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT"}
    assert sorted(service.frontend_pids() + service.worker_pids()) == alive
    assert path.stat().st_size == 4 * BYTES


@pytest.mark.parametrize("whose", ["worker", "frontend"])
def test_regions_outlive_any_process(
    service: Service, clients: list[Client], memory: Memory, whose: str
) -> None:
    memory.register(clients[0])
    pids = service.worker_pids() if whose == "worker" else service.frontend_pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    a, b = _rows(1), _rows(2)
    shm.set_shared_memory_region(memory.handle, [a, b])

    statuses = set()

    def answered() -> bool:
        try:
            found = clients[0].infer("gate", _inputs()).as_numpy("z")
        except InferenceServerException as error:
            statuses.add(error.status())
            return False
        np.testing.assert_array_equal(found, a - 2 * b)
        return True

    wait_until(answered, 60, "an answer")
    assert statuses <= {"StatusCode.UNAVAILABLE"}


@pytest.fixture(scope="module")
def forbidding(start: Start) -> Service:
    """A server that was not told to allow it."""
    model = {"name": "gate", "kind": "elementwise", "expression": "a + b", "backend": "eager"}
    return start({"device": "cpu", "models": [{**model, "dtype": "fp32"}]})


def test_off_unless_allowed(forbidding: Service, memory: Memory) -> None:
    with Client(forbidding.url) as client:
        assert "system_shared_memory" not in client.get_server_metadata().extensions
        for call in (
            lambda: memory.register(client),
            client.get_system_shared_memory_status,
            client.unregister_system_shared_memory,
            client.get_cuda_shared_memory_status,
            lambda: client.infer("gate", _inputs()),
        ):
            with pytest.raises(InferenceServerException, match="--allow-client-shm") as refused:
                call()
            assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


LARGE = (300, 512)
LARGE_X = np.random.default_rng(3).standard_normal((2, *LARGE)).astype(np.float32)


def _ours() -> list[str]:
    """Memory of this process's own clients."""
    found = Path("/dev/shm").glob(f"gatefuse-{os.getpid()}-*")
    return [path.name for path in found if len(path.name.rpartition("-")[2]) == 32]


@pytest.mark.parametrize("datatype", [None, "BF16"])
def test_our_client_shares_by_itself(service: Service, datatype: str | None) -> None:
    a, b = LARGE_X
    with OurClient(service.url, shared_memory="off") as plain, OurClient(service.url) as client:
        expected = plain.infer("gate", {"a": a, "b": b}, datatype=datatype).outputs
        assert not _ours()
        for _ in range(3):
            found = client.infer("gate", {"a": a, "b": b}, datatype=datatype).outputs
            assert len(_ours()) == 1, "one region, used again"
            for name in ("y", "z"):
                np.testing.assert_array_equal(found[name], expected[name])
                found[name][:] = 0  # its own memory
        only = client.infer("gate", {"a": a, "b": b[:, ::-1]}, outputs=["z"]).outputs
        np.testing.assert_array_equal(only["z"], a - 2 * b[:, ::-1])
        assert list(only) == ["z"]
    assert not _ours()


def test_our_streams_and_asyncio_client_share_too(service: Service) -> None:
    a, b = LARGE_X

    async def both() -> list[Any]:
        async with AioClient(service.url, shared_memory="on") as client, client.stream() as stream:
            asked = [client.infer("gate", {"a": k * a, "b": b}) for k in range(3)]
            asked += [stream.infer("gate", {"a": k * a, "b": b}) for k in range(3)]
            return await asyncio.gather(*asked)

    with OurClient(service.url, shared_memory="on") as client, client.stream() as stream:
        futures = [stream.infer("gate", {"a": k * a, "b": b}) for k in range(3)]
        answers = [future.result(30) for future in futures]
        assert 1 <= len(_ours()) <= 3
    answers += asyncio.run(both())
    for number, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.outputs["z"], (number % 3) * a - 2 * b)
    assert not _ours()


def test_our_client_without_shared_memory_at_the_server(forbidding: Service) -> None:
    a, b = LARGE_X
    with OurClient(forbidding.url) as client:
        np.testing.assert_array_equal(client.infer("gate", {"a": a, "b": b}).output, a + b)
        assert not _ours()
    with (
        OurClient(forbidding.url, shared_memory="on") as client,
        pytest.raises(InferenceError, match="--allow-client-shm"),
    ):
        client.infer("gate", {"a": a, "b": b})
    assert not _ours()


def test_our_client_makes_its_memory_anew(service: Service) -> None:
    """The server forgot it, as one does that was started again."""
    a, b = LARGE_X
    inputs = {"a": a, "b": b}
    with (
        OurClient(service.url) as client,
        client.stream() as stream,
        Client(service.url) as other,
    ):
        for infer in (client.infer, lambda *request: stream.infer(*request).result(30)):
            infer("gate", inputs)
            before = _ours()
            other.unregister_system_shared_memory()
            for _ in range(2):
                np.testing.assert_array_equal(infer("gate", inputs).outputs["z"], a - 2 * b)
            assert len(_ours()) == 1
            assert _ours() != before


def test_our_clients_leave_no_region_at_the_server(service: Service, clients: list[Client]) -> None:
    a, b = LARGE_X

    async def ask() -> None:
        async with AioClient(service.url) as client:
            tasks = [asyncio.create_task(client.infer("gate", {"a": a, "b": b})) for _ in range(20)]
            await asyncio.sleep(0.005)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    for _ in range(3):
        with OurClient(service.url) as client:
            client.infer("gate", {"a": a, "b": b})
        asyncio.run(ask())
    assert not clients[0].get_system_shared_memory_status().regions


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_ends_without_a_word_leaves_no_region(
    service: Service, clients: list[Client], end: str
) -> None:
    program = f"""
import gatefuse, os, signal, numpy as np
a = np.ones((1000, 100), np.float32)
client = gatefuse.Client({service.url!r})
client.infer("gate", {{"a": a, "b": a}})
print(os.getpid(), flush=True)
{end}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert ended.returncode == (0 if end == "pass" else -signal.SIGKILL)
    wait_until(
        lambda: not clients[0].get_system_shared_memory_status().regions,
        10,
        "the region is dropped",
    )
    assert not list(Path("/dev/shm").glob(f"gatefuse-{ended.stdout.strip()}-*"))
