"""The worker's end of a link: the real LinkServer in a process of its own, and frontends that are not kind to it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.service.fakes import COLUMNS, exact_rows
from tests.service.link_worker import EXIT_FAULT, MODELS, NAMES, running

from gatefuse.config import ModelConfig
from gatefuse.link import messages, packets
from gatefuse.link.arena import PAGE_BYTES, Arena, SlotLayout
from gatefuse.link.messages import BatchMessage, DoneMessage, Hello, Status, Welcome
from gatefuse.link.packets import LinkError
from gatefuse.wire import Datatype, decode, encode
from gatefuse.worker.process import Worker

LONG_S = 60.0

Connect = Callable[[], "Frontend"]


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("link") / "w.sock"


@pytest.fixture(scope="module")
def worker(socket_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One worker for all tests that must not harm it."""
    with running(socket_path) as process:
        yield process


class Frontend:
    """A frontend's end of the link, one packet at a time."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(30)
        self.sock.connect(str(path))
        self.arena: Arena | None = None

    def greet(self) -> Welcome:
        """The whole handshake."""
        welcome = Welcome.unpack(packets.receive(self.sock, packets.MAX_WELCOME_BYTES))
        layout = SlotLayout.for_regions(welcome.batches_in_flight, 1000)
        self.arena = Arena.create(layout)
        packets.send(self.sock, Hello(layout.slots, layout.region_bytes).pack(), self.arena.fd)
        assert packets.receive(self.sock) == messages.READY_PACKET
        return welcome

    def start(
        self, name: str, rows: int = 2, slot: int = 0, first: int = 0, patience_s: float = LONG_S
    ) -> None:
        """Sends a batch of exact rows."""
        assert self.arena is not None
        packed = encode(exact_rows(first, rows), Datatype.BF16)
        self.arena.input(slot)[: len(packed)] = packed
        deadline_ns = time.monotonic_ns() + int(patience_s * 1e9)
        message = BatchMessage(slot, NAMES.index(name), 0, rows, COLUMNS, first, deadline_ns)
        packets.send(self.sock, message.pack())

    def done(self) -> DoneMessage:
        """The next answer."""
        return DoneMessage.unpack(packets.receive(self.sock))

    def output(self, rows: int = 2, slot: int = 0) -> np.ndarray:
        """The rows in a slot's output."""
        assert self.arena is not None
        size = rows * COLUMNS * 2
        return decode(bytes(self.arena.output(slot)[:size]), Datatype.BF16, (rows, COLUMNS))

    def close(self) -> None:
        """Leaves without a word."""
        self.sock.close()
        if self.arena is not None:
            self.arena.close()
            self.arena = None


@pytest.fixture
def connect(worker: subprocess.Popen[bytes], socket_path: Path) -> Iterator[Connect]:
    """Connects frontends to the worker, and checks at the end that it still serves."""
    with ExitStack() as frontends:

        def connect() -> Frontend:
            frontend = Frontend(socket_path)
            frontends.callback(frontend.close)
            return frontend

        yield connect
        assert worker.poll() is None
        _still_serves(connect())


def _still_serves(frontend: Frontend) -> DoneMessage:
    frontend.greet()
    frontend.start("ffn", rows=3, first=700)
    done = frontend.done()
    assert done.status is Status.OK
    np.testing.assert_array_equal(frontend.output(3), 2 * exact_rows(700, 3))
    return done


def test_a_batch_round_trip(connect: Connect, worker: subprocess.Popen[bytes]) -> None:
    frontend = connect()
    assert frontend.greet() == Welcome(worker.pid, "cpu", 2, MODELS)
    for number, rows in enumerate((1, 7, 8)):
        frontend.start("ffn", rows, slot=number % 2, first=10 * number)
        done = frontend.done()
        assert (done.status, done.slot, done.batch_id) == (Status.OK, number % 2, 10 * number)
        expected = 2 * exact_rows(10 * number, rows)
        np.testing.assert_array_equal(frontend.output(rows, number % 2), expected)


def test_two_batches_wait_in_the_link(connect: Connect) -> None:
    frontend = connect()
    frontend.greet()
    frontend.start("slow", slot=0, first=1)
    frontend.start("ffn", slot=1, first=5)
    assert [frontend.done().batch_id for _ in range(2)] == [1, 5]
    np.testing.assert_array_equal(frontend.output(slot=0), 2 * exact_rows(1, 2))
    np.testing.assert_array_equal(frontend.output(slot=1), 2 * exact_rows(5, 2))


def test_an_expired_batch_is_not_run(connect: Connect) -> None:
    frontend = connect()
    frontend.greet()
    frontend.start("ffn")
    submitted = frontend.done().entries[0].launches
    frontend.start("ffn", slot=1, first=9, patience_s=-1e-9)
    done = frontend.done()
    assert (done.status, done.slot, done.batch_id) == (Status.EXPIRED, 1, 9)
    assert done.entries == ()
    assert not frontend.output(slot=1).any()
    frontend.start("ffn")
    assert frontend.done().entries[0].launches == submitted + 1


def test_a_batch_that_fails_is_answered(connect: Connect) -> None:
    frontend = connect()
    frontend.greet()
    frontend.start("faulty", first=4)
    done = frontend.done()
    assert (done.status, done.batch_id, done.entries) == (Status.FAILED, 4, ())
    frontend.start("ffn")
    assert frontend.done().status is Status.OK


def test_a_device_fault_ends_the_process(tmp_path: Path) -> None:
    with running(tmp_path / "w.sock") as worker:
        frontend = Frontend(tmp_path / "w.sock")
        frontend.greet()
        frontend.start("fatal")
        with pytest.raises(LinkError):
            frontend.done()
        assert worker.wait(30) == EXIT_FAULT
        frontend.close()


def test_several_frontends_do_not_mix(connect: Connect) -> None:
    frontends = [connect() for _ in range(3)]
    for frontend in frontends:
        frontend.greet()
    for number, frontend in enumerate(frontends):
        frontend.start("ffn", first=100 * number)
    for number, frontend in enumerate(frontends):
        assert frontend.done().batch_id == 100 * number
        np.testing.assert_array_equal(frontend.output(), 2 * exact_rows(100 * number, 2))


def test_a_frontend_that_leaves_takes_its_arena_along(connect: Connect) -> None:
    stays = connect()
    stays.greet()
    for _ in range(3):
        leaves = connect()
        leaves.greet()
        leaves.start("ffn")
        leaves.done()
        leaves.close()
    stays.start("slow")
    stays.done()
    stays.start("ffn")
    # What read_bytes stands for here: the arenas that the engine holds.
    assert stays.done().entries[0].read_bytes == 1


def test_a_frontend_that_leaves_before_its_answer(connect: Connect) -> None:
    stays, leaves = connect(), connect()
    stays.greet()
    leaves.greet()
    leaves.start("lazy")
    leaves.start("slow", slot=1)
    leaves.close()
    stays.start("ffn")
    stays.done()
    stays.start("ffn")
    assert stays.done().entries[0].read_bytes == 1


def test_a_frontend_is_found_gone_while_it_has_an_event(connect: Connect) -> None:
    stays, leaves = connect(), connect()
    stays.greet()
    leaves.greet()
    leaves.start("lazy")
    # While this one computes both have something to say; the worker sees it in one look. The second batch then sets
    # the lazy one free, whose answer finds nobody.
    stays.start("slow")
    time.sleep(0.05)
    stays.start("ffn", slot=1, first=3)
    leaves.start("lazy")
    leaves.close()
    assert [stays.done().batch_id for _ in range(2)] == [0, 3]


def test_a_frontend_that_leaves_without_a_word(connect: Connect) -> None:
    # Its Welcome is never read, so the worker gets a reset instead of an end.
    connect().close()


def test_a_frontend_that_leaves_after_the_welcome(connect: Connect) -> None:
    frontend = connect()
    packets.receive(frontend.sock, packets.MAX_WELCOME_BYTES)
    frontend.close()


@pytest.mark.parametrize(
    "packet",
    [b"", b"\x00", b"\x02", b"\x02{}", b"\x02[1]", messages.READY_PACKET, b"\xff" * 100],
    ids=repr,
)
def test_a_frontend_that_says_something_else_is_dropped(connect: Connect, packet: bytes) -> None:
    frontend = connect()
    packets.receive(frontend.sock, packets.MAX_WELCOME_BYTES)
    fd = os.memfd_create("test")
    packets.send(frontend.sock, packet or b"\x02", fd if packet else None)
    os.close(fd)
    with pytest.raises(LinkError):
        packets.receive(frontend.sock)


def test_an_arena_smaller_than_promised_is_refused(connect: Connect) -> None:
    frontend = connect()
    packets.receive(frontend.sock, packets.MAX_WELCOME_BYTES)
    arena = Arena.create(SlotLayout(1, PAGE_BYTES))
    packets.send(frontend.sock, Hello(2, PAGE_BYTES).pack(), arena.fd)
    with pytest.raises(LinkError):
        packets.receive(frontend.sock)
    arena.close()


@pytest.mark.parametrize("packet", [b"\x04", b"\x04" * 100, messages.READY_PACKET], ids=repr)
def test_a_batch_that_is_none_drops_the_frontend(connect: Connect, packet: bytes) -> None:
    frontend = connect()
    frontend.greet()
    packets.send(frontend.sock, packet)
    with pytest.raises(LinkError):
        frontend.done()


def _report_until(worker: Worker, *states: str) -> tuple[str, str]:
    deadline_s = time.monotonic() + 60
    while worker.report().state not in states:
        assert time.monotonic() < deadline_s, worker.report()
        time.sleep(0.02)
    report = worker.report()
    assert report.pid == os.getpid()
    return report.state, report.error


def test_a_worker_without_its_checkpoint_says_so(tmp_path: Path) -> None:
    import torch

    model = ModelConfig(name="llama", checkpoint=tmp_path / "missing")
    socket_path = tmp_path / "w.sock"
    worker = Worker(str(socket_path), [model], "cpu", torch.get_num_threads())
    state, error = _report_until(worker, "failed", "ready")
    assert state == "failed"
    assert "there is no such file or folder" in error
    assert not socket_path.exists()


def test_models_that_take_too_long_to_describe_are_refused_at_the_start(tmp_path: Path) -> None:
    import torch

    constants: dict[str, Any] = {f"constant_{number:03}": 1.0 for number in range(150)}
    models = [
        ModelConfig(
            name=f"m{number}",
            kind="elementwise",
            expression=f"x * ({' + '.join(constants)})",
            constants=constants,
            backend="eager",
            max_columns=8,
        )
        for number in range(60)
    ]
    worker = Worker(str(tmp_path / "worker.sock"), models, "cpu", torch.get_num_threads())
    state, error = _report_until(worker, "failed", "ready")
    assert state == "failed"
    assert "the descriptions of 60 models take" in error
