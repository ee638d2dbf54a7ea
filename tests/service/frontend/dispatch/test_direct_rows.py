"""Rows that a worker's device moves by itself: from the request that points at them to the device's own list."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.service.fakes import ANY_WIDTH, PAIR, exact_rows

from gatefuse.batching.batcher import Limits, Sealed, Trigger
from gatefuse.errors import InvalidRequest
from gatefuse.frontend.dispatch.client_rows import DIRECT_FROM_BYTES
from gatefuse.frontend.dispatch.rows import batch_layout, read_piece, write_batch
from gatefuse.frontend.requests.codec import InferRequest
from gatefuse.frontend.requests.job import Job
from gatefuse.frontend.shared_memory import CudaRegion, RegionSlice, Registration, SystemRegion
from gatefuse.frontend.shared_memory.lent_memory import NOTHING, Lender, LentMemory
from gatefuse.frontend.shared_memory.region import Region
from gatefuse.link import packets
from gatefuse.link.arena import tensor_stride
from gatefuse.link.memory import MemoryNumber, Move, OpenMemory, pack_moves, unpack_moves
from gatefuse.link.messages import Kind
from gatefuse.link.packets import LinkError
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype, encode
from gatefuse.worker.engine.base import DirectMove, OpenedMemory
from gatefuse.worker.peer_memory import PeerMemory, UnknownMemoryError

COLUMNS = 4096
WIDE = replace(ANY_WIDTH, columns=COLUMNS, max_columns=COLUMNS)
WIDE_PAIR = replace(PAIR, columns=COLUMNS, max_columns=COLUMNS)
ROW_BYTES = 4 * COLUMNS
ROWS = 5
BYTES = ROWS * ROW_BYTES
OFFSET = 100  # of the region within its file: no multiple of a page
HANDLE = bytes(range(64))


@pytest.fixture
def region(tmp_path: Path) -> SystemRegion:
    file = tmp_path / "memory"
    file.write_bytes(np.random.default_rng(0).bytes(OFFSET + 4 * BYTES))
    return SystemRegion("r", os.open(file, os.O_RDWR), OFFSET, 4 * BYTES)


def _cuda_region() -> CudaRegion:
    return CudaRegion(Registration("gpu", 4 * BYTES, device_id=0, handle=HANDLE))


class Numbered:
    """A device that can use some regions."""

    def __init__(self, *usable: Region) -> None:
        self._usable = usable

    def number(self, region: Region) -> int | None:
        return self._usable.index(region) if region in self._usable else None


def _sealed(loop: asyncio.AbstractEventLoop, *requests: InferRequest) -> Sealed:
    limits = Limits(max_batch_rows=64, max_queue_rows=64)
    jobs = [Job(request, limits, loop.create_future(), 0.0, 10.0) for request in requests]
    works = tuple(work for job in jobs for work in job.works)
    return Sealed(works[0].key, works, sum(work.rows for work in works), Trigger.FULL)


def _request(
    model: ServedModel,
    payloads: tuple[Any, ...],
    targets: tuple[RegionSlice | None, ...] = (),
    datatype: Datatype = Datatype.FP32,
) -> InferRequest:
    outputs = tuple(range(len(model.outputs)))
    return InferRequest(model, 0, ROWS, COLUMNS, datatype, payloads, outputs, "", targets)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_only_rows_in_usable_memory_are_left_to_the_device(
    loop: asyncio.AbstractEventLoop, region: SystemRegion
) -> None:
    """A batch of two requests: one's g in memory, its y too; the other travelled."""
    g, u = RegionSlice(region, BYTES, BYTES), encode(exact_rows(0, ROWS, COLUMNS))
    first = _request(WIDE_PAIR, (g, u), (RegionSlice(region, 2 * BYTES, BYTES + 7), None))
    second = _request(WIDE_PAIR, (u, u))
    sealed = _sealed(loop, second, first)
    layout = batch_layout("fp32", 2 * ROWS, COLUMNS)
    assert layout.stride == tensor_stride(2 * ROWS, ROW_BYTES)
    slot = memoryview(bytearray(2 * layout.stride))
    write_batch(sealed, layout, slot, Numbered(region))
    assert sealed.moves == (
        Move(True, 0, BYTES, BYTES, BYTES),
        Move(False, 0, 2 * BYTES, BYTES, BYTES),
    )
    assert slot[:BYTES] == u
    assert slot[BYTES : 2 * BYTES] == bytes(BYTES), "left to the device"
    assert slot[layout.stride :][: 2 * BYTES] == u + u
    before = bytearray(BYTES)
    region.read_into(2 * BYTES, memoryview(before))
    answers = memoryview(np.random.default_rng(1).bytes(2 * layout.stride))
    pieces = read_piece(sealed.works[1], ROWS, layout, answers, sealed.moves)
    assert pieces == (b"", bytes(answers[layout.stride + BYTES :][:BYTES]))
    after = bytearray(BYTES)
    region.read_into(2 * BYTES, memoryview(after))
    assert after == before, "the device's to write"


@pytest.mark.parametrize("lender", [NOTHING, Numbered()])
def test_other_rows_are_copied(
    loop: asyncio.AbstractEventLoop, region: SystemRegion, lender: Lender
) -> None:
    there = RegionSlice(region, 2 * BYTES, BYTES)
    sealed = _sealed(loop, _request(WIDE, (RegionSlice(region, 3, BYTES),), (there,)))
    layout = batch_layout("fp32", ROWS, COLUMNS)
    slot, given = memoryview(bytearray(BYTES)), memoryview(bytearray(BYTES))
    write_batch(sealed, layout, slot, lender)
    region.read_into(3, given)
    assert sealed.moves == ()
    assert slot == given
    assert read_piece(sealed.works[0], 0, layout, slot, sealed.moves) == (b"",)
    there.read_into(given)
    assert given == slot


def test_small_rows_and_other_datatypes_are_copied(
    loop: asyncio.AbstractEventLoop, region: SystemRegion
) -> None:
    small = replace(WIDE, columns=3)
    size = ROWS * 3 * 4
    assert size < DIRECT_FROM_BYTES
    request = _request(small, (RegionSlice(region, 0, size),))._replace(columns=3)
    sealed = _sealed(loop, request)
    write_batch(
        sealed, batch_layout("fp32", ROWS, 3), memoryview(bytearray(size)), Numbered(region)
    )
    assert sealed.moves == ()
    half = _request(WIDE, (RegionSlice(region, 0, BYTES // 2),), datatype=Datatype.BF16)
    sealed = _sealed(loop, half)
    layout = batch_layout("fp32", ROWS, COLUMNS)
    write_batch(sealed, layout, memoryview(bytearray(BYTES)), Numbered(region))
    assert sealed.moves == ()


def test_rows_on_a_gpu_are_never_copied(loop: asyncio.AbstractEventLoop) -> None:
    gpu = _cuda_region()
    layout = batch_layout("fp32", ROWS, COLUMNS)
    slot = memoryview(bytearray(BYTES))
    rows = RegionSlice(gpu, 16, BYTES)
    sealed = _sealed(loop, _request(WIDE, (rows,), (rows,)))
    write_batch(sealed, layout, slot, Numbered(gpu))
    assert sealed.moves == (Move(True, 0, 16, 0, BYTES), Move(False, 0, 16, 0, BYTES))
    for lender, datatype, text in (
        (NOTHING, Datatype.FP32, "region 'gpu' cannot be used"),
        (Numbered(gpu), Datatype.BF16, "the model's own datatype"),
    ):
        part = RegionSlice(gpu, 0, ROWS * COLUMNS * datatype.itemsize)
        for request in (
            _request(WIDE, (part,), datatype=datatype),
            _request(WIDE, (bytes(len(part)),), (part,), datatype=datatype),
        ):
            sealed = _sealed(loop, request)
            write_batch(sealed, layout, slot, lender)
            with pytest.raises(InvalidRequest, match=text):
                sealed.works[0].job.future.result()


@dataclass
class FakeMemory:
    """What the fake engine opened."""

    message: OpenMemory
    content: bytes
    closed: bool = False

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Opens files, and handles that it is told of."""

    def __init__(self) -> None:
        self.opened: list[FakeMemory] = []

    def open_memory(self, message: OpenMemory, fd: int) -> OpenedMemory:
        if message.handle:
            if bytes.fromhex(message.handle) != HANDLE:
                raise ValueError("no such handle")
            memory = FakeMemory(message, b"")
        else:
            with mmap.mmap(fd, message.offset + message.byte_size) as mapped:
                memory = FakeMemory(message, mapped[message.offset :])
        self.opened.append(memory)
        return memory

    def close_memory(self, memory: OpenedMemory) -> None:
        memory.close()


class Link:
    """Both ends over one socket."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._there.setblocking(False)
        self._here.setblocking(False)
        self.engine = FakeEngine()
        self.lent = LentMemory(lambda packet, fd: packets.send(self._here, packet, fd))
        self.peer = PeerMemory(self.engine, self._there)  # type: ignore[arg-type]

    def close(self) -> None:
        self._here.close()
        self._there.close()

    def send(self, moves: list[Move]) -> tuple[DirectMove, ...]:
        for packet in pack_moves(moves):
            packets.send(self._here, packet)
        self.run()
        return self.peer.take_moves()

    def run(self) -> None:
        """Delivers whatever is under way."""
        for sock, deliver in ((self._there, self.peer.handle), (self._here, self._opened)):
            while True:
                try:
                    packet = packets.receive(sock)
                except BlockingIOError:
                    break
                deliver(packet)

    def _opened(self, packet: bytes) -> None:
        self.lent.opened(MemoryNumber.unpack(packet))


@pytest.fixture
def linked() -> Iterator[Link]:
    made = Link()
    yield made
    made.close()


def test_memory_is_used_once_it_is_open(linked: Link, region: SystemRegion) -> None:
    assert linked.lent.number(region) is None
    assert linked.lent.number(region) is None
    linked.run()
    number = linked.lent.number(region)
    assert number is not None
    (memory,) = linked.engine.opened
    content = bytearray(region.byte_size)
    region.read_into(0, memoryview(content))
    assert memory.content == content
    moves = [Move(n % 2 == 0, number, n, 2 * n, 3 * n) for n in range(700)]
    assert linked.send(moves) == tuple(DirectMove(memory, move) for move in moves)
    assert linked.send([]) == ()


def test_memory_is_closed_with_its_last_reference(linked: Link, region: SystemRegion) -> None:
    linked.lent.number(region)
    other = SystemRegion("other", os.dup(region.fd), 0, 10)
    linked.lent.number(other)
    linked.run()
    first, second = linked.engine.opened
    del other
    gc.collect()
    linked.run()
    assert (first.closed, second.closed) == (False, True)
    linked.peer.close()
    assert first.closed


def test_memory_that_cannot_be_opened_is_copied(linked: Link, region: SystemRegion) -> None:
    os.truncate(f"/proc/self/fd/{region.fd}", 10)
    told: list[bool] = []
    linked.lent.when_open(region, told.append)
    linked.run()
    linked.lent.when_open(region, told.append)
    assert told == [False, False]
    assert linked.lent.number(region) is None
    assert not linked.engine.opened


def test_a_gpus_memory_has_a_number_at_once(linked: Link) -> None:
    gpu = _cuda_region()
    told: list[bool] = []
    number = linked.lent.number(gpu)
    assert number is not None
    linked.lent.when_open(gpu, told.append)
    assert told == []
    linked.run()
    assert told == [True]
    assert linked.lent.number(gpu) == number
    false = CudaRegion(Registration("false", 10, device_id=0, handle=HANDLE[::-1]))
    wrong = linked.lent.number(false)
    assert wrong is not None
    with pytest.raises(UnknownMemoryError):
        linked.send([Move(True, wrong, 0, 0, 1)])
    assert linked.lent.number(false) is None
    assert linked.send([]) == (), "the next batch is not burdened with it"


def test_a_worker_that_is_gone(linked: Link, region: SystemRegion) -> None:
    told: list[bool] = []
    linked.lent.when_open(region, told.append)
    linked.lent.close()
    assert told == [False]
    linked.close()
    assert LentMemory(_gone).number(region) is None


def _gone(packet: bytes, fd: int | None) -> None:
    raise LinkError("gone")


@pytest.mark.parametrize(
    "packet", [bytes([Kind.OPEN]) + b"{", bytes([Kind.CLOSE]), bytes([Kind.MOVES, 1]), b"\xff"]
)
def test_malformed_packets(linked: Link, packet: bytes) -> None:
    with pytest.raises((LinkError, ValueError)):
        linked.peer.handle(packet)


def test_moves_travel_whole() -> None:
    moves = [Move(True, 2**32 - 1, 2**63, 2**40, 2**62)] * 513
    packed = list(pack_moves(moves))
    assert all(len(packet) <= packets.MAX_MESSAGE_BYTES for packet in packed)
    assert [move for packet in packed for move in unpack_moves(packet)] == moves
