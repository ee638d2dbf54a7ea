"""Both ends of the link together, over a Unix socket: a dispatcher here, workers in processes of their own."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from tests.service.fakes import ANY_WIDTH, MLP, exact_rows, infer_request
from tests.service.link_worker import CPU_MODEL, MODELS, NAMES, SLOW_S, running

from gatefuse import metrics
from gatefuse.batching.batcher import Limits
from gatefuse.errors import ComputeFailed, NoReplica
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.dispatch.worker_link import WorkerLink
from gatefuse.frontend.requests.codec import Cost
from gatefuse.link import messages, packets
from gatefuse.link.messages import DoneMessage, Hello, Status, Welcome
from gatefuse.link.served_model import ServedModel
from gatefuse.run_folder.slots import hang_marker
from gatefuse.wire import Datatype, encode

BATCH_TIMEOUT_S = 60.0


def _limits(name: str) -> Limits:
    return Limits(max_batch_rows=8, max_queue_rows=100)


@pytest_asyncio.fixture
async def dispatcher() -> Dispatcher:
    return Dispatcher(asyncio.get_running_loop())


@pytest_asyncio.fixture
async def worker_link(dispatcher: Dispatcher, tmp_path: Path) -> AsyncIterator[WorkerLink]:
    """A link to whoever listens at tmp_path/w.sock, open."""
    loop = asyncio.get_running_loop()
    worker_link = WorkerLink(tmp_path / "w.sock", dispatcher, loop, _limits, BATCH_TIMEOUT_S)
    worker_link.open()
    yield worker_link
    worker_link.close()


async def _until(condition: Callable[[], bool]) -> None:
    """Waits for what comes from another process."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing here is told when another process acts
            await asyncio.sleep(0.002)


def _ask(
    dispatcher: Dispatcher, model: ServedModel, rows: int, first: int = 0, **options: Any
) -> asyncio.Task[tuple[Any, Cost]]:
    timeout_s = options.pop("timeout_s", 30.0)
    request = infer_request(model, exact_rows(first, rows), **options)
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    return asyncio.create_task(dispatcher.infer(request, deadline_s))


def _model(name: str) -> ServedModel:
    return MODELS[NAMES.index(name)]


def _calls(outcome: str) -> float:
    """Batches that ended so, so far."""
    metrics.flush()
    name, labels = "gatefuse_replica_call_seconds_count", {"outcome": outcome}
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def _check_rows(dispatcher: Dispatcher) -> None:
    tasks = [
        _ask(dispatcher, _model("ffn"), rows, first=40 * number, datatype=datatype)
        for number, (rows, datatype) in enumerate(
            [(1, Datatype.BF16), (19, Datatype.FP32), (8, Datatype.FP16), (3, Datatype.FP32)]
        )
    ]
    for number, task in enumerate(tasks):
        (output,), cost = await task
        request_rows, datatype = [(1, "BF16"), (19, "FP32"), (8, "FP16"), (3, "FP32")][number]
        expected = encode(2 * exact_rows(40 * number, request_rows), Datatype(datatype))
        assert bytes(output) == expected
        assert cost.batch_rows >= request_rows


@pytest.mark.asyncio
async def test_batches_go_there_and_come_back(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    assert worker_link.credits == 0
    with running(tmp_path / "w.sock") as worker:
        await _until(lambda: dispatcher.is_ready("ffn"))
        assert worker_link.credits == 2
        assert (dict(worker_link.models), worker_link.device) == (
            {model.name: model for model in MODELS},
            "cpu",
        )
        assert repr(worker_link) == f"WorkerLink(w.sock, ready, pid={worker.pid}, in_flight=0)"
        await _check_rows(dispatcher)
        assert worker_link.credits == 2


@pytest.mark.asyncio
async def test_a_failed_batch_is_an_error_and_no_loss(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    with running(tmp_path / "w.sock"):
        await _until(lambda: dispatcher.is_ready("faulty"))
        for _ in range(3):
            with pytest.raises(ComputeFailed):
                await _ask(dispatcher, _model("faulty"), 1)
        await _check_rows(dispatcher)


@pytest.mark.asyncio
async def test_a_worker_that_dies_is_connected_to_again_and_its_rows_run_again(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    died = _calls("died")
    with running(tmp_path / "w.sock") as worker:
        await _until(lambda: dispatcher.is_ready("slow"))
        tasks = [_ask(dispatcher, _model("slow"), 8, first=8 * number) for number in range(3)]
        await asyncio.sleep(SLOW_S / 3)
        worker.kill()
        await _until(lambda: not dispatcher.is_ready("slow"))
        with pytest.raises(NoReplica):
            await _ask(dispatcher, _model("ffn"), 1)
        assert not any(task.done() for task in tasks)
    assert _calls("died") == died + 2
    (tmp_path / "w.sock").unlink()
    with running(tmp_path / "w.sock"):
        for number, task in enumerate(tasks):
            (output,), _ = await task
            assert bytes(output) == encode(2 * exact_rows(8 * number, 8), Datatype.FP32)
        await _check_rows(dispatcher)


@pytest.mark.asyncio
async def test_a_silent_worker_is_killed(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    timeouts, died = _calls("timeout"), _calls("died")
    loop = asyncio.get_running_loop()
    with running(tmp_path / "w.sock") as worker:
        await _until(lambda: dispatcher.is_ready("stuck"))
        worker_link.kill_if_hung(loop.time() + 2 * BATCH_TIMEOUT_S)
        assert worker.poll() is None, "an idle worker may be silent"
        task = _ask(dispatcher, _model("stuck"), 1)
        await _until(lambda: worker_link.credits == 1)
        worker_link.kill_if_hung(loop.time() + BATCH_TIMEOUT_S / 2)
        assert worker.poll() is None, "it may be silent for a while"
        worker_link.kill_if_hung(loop.time() + 1.01 * BATCH_TIMEOUT_S)
        assert await asyncio.to_thread(worker.wait, 30) == -signal.SIGKILL
    assert hang_marker(worker_link.path, worker.pid).exists()
    assert not dispatcher.is_ready("stuck")
    # One batch ended, in one way.
    assert (_calls("timeout"), _calls("died")) == (timeouts + 1, died)
    task.cancel()
    (tmp_path / "w.sock").unlink()
    with running(tmp_path / "w.sock"):
        await _until(lambda: dispatcher.is_ready("ffn"))
        await _check_rows(dispatcher)


@pytest.mark.asyncio
async def test_a_deadline_beyond_any_clock(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    with running(tmp_path / "w.sock"):
        await _until(lambda: dispatcher.is_ready("ffn"))
        (output,), _ = await _ask(dispatcher, _model("ffn"), 1, timeout_s=1e300)
        assert bytes(output) == encode(2 * exact_rows(0, 1), Datatype.FP32)


@pytest.mark.asyncio
async def test_a_closed_link_stays_closed(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    with running(tmp_path / "w.sock"):
        await _until(lambda: dispatcher.is_ready("ffn"))
        worker_link.close()
        assert worker_link.credits == 0
        worker_link.open()
        await asyncio.sleep(0.02)
        assert repr(worker_link).startswith("WorkerLink(w.sock, connecting")


@pytest.mark.asyncio
async def test_the_cpu_engine(
    dispatcher: Dispatcher, worker_link: WorkerLink, tmp_path: Path
) -> None:
    with running(tmp_path / "w.sock", "cpu") as worker:
        await _until(lambda: worker.poll() is not None or dispatcher.is_ready(CPU_MODEL.name))
        model = dispatcher.models[CPU_MODEL.name]
        assert (model.dtype, model.columns, model.max_columns) == ("bf16", 0, 16)
        for rows, columns in ((1, 1), (13, 5), (8, 16)):
            x = exact_rows(0, rows, columns)
            deadline_s = asyncio.get_running_loop().time() + 30
            (output,), cost = await dispatcher.infer(infer_request(model, x), deadline_s)
            expected = 2 * x
            np.testing.assert_array_equal(
                np.frombuffer(output, np.float32).reshape(rows, columns), expected
            )
            batches = -(-rows // 8)
            assert (cost.kernel_launches, cost.batch_rows) == (batches, rows)
            # One kernel reads and writes every element once, in bf16.
            assert cost.bytes_moved == 2 * 2 * rows * columns


class Impostor:
    """A worker's end of the link in this process: it says what it is told to."""

    def __init__(self, path: Path) -> None:
        self._server = packets.listen(str(path))
        self._server.settimeout(30)
        self.sock: socket.socket | None = None

    async def accept(self) -> socket.socket:
        """The next connection."""
        self._hang_up()
        sock, _ = await asyncio.to_thread(self._server.accept)
        sock.settimeout(30)
        self.sock = sock
        return sock

    async def greet(self, pid: int = 1) -> socket.socket:
        """The next connection, after its handshake."""
        sock = await self.accept()
        packets.send(sock, Welcome(pid, "cpu", 1, (MLP, ANY_WIDTH)).pack())
        packet, fd = await asyncio.to_thread(packets.receive_with_fd, sock)
        socket.close(fd)
        hello = Hello.unpack(packet)
        # The widest rows of any model: 8 rows of 16 fp32 columns fit a page.
        assert (hello.slots, hello.region_bytes) == (1, 4096)
        packets.send(sock, messages.READY_PACKET)
        return sock

    def close(self) -> None:
        self._hang_up()
        self._server.close()

    def _hang_up(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


@pytest_asyncio.fixture
async def impostor(tmp_path: Path) -> AsyncIterator[Impostor]:
    impostor = Impostor(tmp_path / "w.sock")
    yield impostor
    impostor.close()


@pytest.fixture
def dead_pid() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


BAD_DONE = DoneMessage(Status.OK, 0, 1, 99, 0.0, 0.0, ()).pack()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "packet",
    [b"\x00", b"\x01{}", b"\x02{}", b"\x04" * 36, BAD_DONE, BAD_DONE[:9]],
    ids=["unknown", "welcome", "hello", "batch", "done_of_no_batch", "half_done"],
)
async def test_a_peer_that_talks_nonsense_is_left_and_its_rows_kept(
    dispatcher: Dispatcher, worker_link: WorkerLink, impostor: Impostor, packet: bytes
) -> None:
    sock = await impostor.greet()
    await _until(lambda: dispatcher.is_ready("ffn"))
    task = _ask(dispatcher, MLP, 1)
    await asyncio.to_thread(packets.receive, sock)
    packets.send(sock, packet)
    await _until(lambda: not dispatcher.is_ready("ffn"))
    assert not task.done()
    again = await impostor.greet()
    message = messages.BatchMessage.unpack(await asyncio.to_thread(packets.receive, again))
    assert message.rows == 1
    packets.send(again, DoneMessage(Status.OK, 0, 1, message.batch_id, 0.0, 0.0, ()).pack())
    # The impostor wrote nothing into the slot: a new arena is zero.
    assert (await task)[0] == (bytes(3 * 4),)


@pytest.mark.asyncio
async def test_a_worker_that_died_while_it_was_silent(
    dispatcher: Dispatcher, worker_link: WorkerLink, impostor: Impostor, dead_pid: int
) -> None:
    sock = await impostor.greet(dead_pid)
    await _until(lambda: dispatcher.is_ready("ffn"))
    task = _ask(dispatcher, MLP, 1)
    await asyncio.to_thread(packets.receive, sock)
    worker_link.kill_if_hung(asyncio.get_running_loop().time() + 2 * BATCH_TIMEOUT_S)
    assert not dispatcher.is_ready("ffn")
    await impostor.greet()
    await _until(lambda: dispatcher.is_ready("ffn"))
    task.cancel()


class FailsOnce(Dispatcher):
    """A dispatcher that cannot take the first answer."""

    failed = False

    def batch_done(self, *arguments: Any) -> None:
        if not self.failed:
            self.failed = True
            raise RuntimeError("as asked")
        super().batch_done(*arguments)


@pytest.mark.asyncio
async def test_rows_that_could_not_be_handed_out_run_again(
    impostor: Impostor, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    dispatcher = FailsOnce(loop)
    worker_link = WorkerLink(tmp_path / "w.sock", dispatcher, loop, _limits, BATCH_TIMEOUT_S)
    worker_link.open()
    sock = await impostor.greet()
    await _until(lambda: dispatcher.is_ready("ffn"))
    task = _ask(dispatcher, MLP, 1)
    for _ in range(2):
        message = messages.BatchMessage.unpack(await asyncio.to_thread(packets.receive, sock))
        packets.send(sock, DoneMessage(Status.OK, 0, 1, message.batch_id, 0.0, 0.0, ()).pack())
        if not dispatcher.failed:
            sock = await impostor.greet()
    await asyncio.wait_for(task, 10)
    worker_link.close()
