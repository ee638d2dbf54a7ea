"""Packets between a frontend and a worker."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.fakes import ANY_WIDTH, DEEP, MLP

from gatefuse.link import messages, packets
from gatefuse.link.messages import BatchMessage, DoneMessage, Hello, Status, Welcome
from gatefuse.link.packets import LinkError
from gatefuse.trace_context import PACKED_BYTES
from gatefuse_kernels.ledger import Entry

WELCOME = Welcome(pid=7, device="cuda:0", batches_in_flight=2, models=(MLP, DEEP, ANY_WIDTH))
HELLO = Hello(slots=2, region_bytes=8192)
BATCH = BatchMessage(1, 2, 31, 8, 4096, 9, 10**18)
ENTRIES = (
    Entry("gate_up", "graph", 1, 2**40, 3, 2**50),
    Entry("down", "eager", 2, 0, 1, 0),
)
DONE = DoneMessage(Status.OK, 1, 16, 9, 0.25, 0.125, ENTRIES)
UNPACK: dict[str, Callable[[bytes], Any]] = {
    "welcome": Welcome.unpack,
    "hello": Hello.unpack,
    "batch": BatchMessage.unpack,
    "done": DoneMessage.unpack,
}
PACKETS = {
    "welcome": WELCOME.pack(),
    "hello": HELLO.pack(),
    "ready": messages.READY_PACKET,
    "batch": BATCH.pack(),
    "done": DONE.pack(),
}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_round_trips() -> None:
    assert Welcome.unpack(WELCOME.pack()) == WELCOME
    assert Hello.unpack(HELLO.pack()) == HELLO
    assert DoneMessage.unpack(DONE.pack()) == DONE
    unpacked = DoneMessage.unpack(DONE._replace(status=Status.FAILED, entries=()).pack())
    assert unpacked.status is Status.FAILED
    assert unpacked.entries == ()


@given(
    st.builds(
        BatchMessage,
        slot=st.integers(0, 2**16 - 1),
        model=st.integers(0, 2**16 - 1),
        layer=st.integers(-(2**31), 2**31 - 1),
        rows=st.integers(0, 2**32 - 1),
        columns=st.integers(0, 2**32 - 1),
        batch_id=st.integers(0, 2**64 - 1),
        last_deadline_ns=st.integers(0, 2**64 - 1),
        trace=st.binary(min_size=PACKED_BYTES, max_size=PACKED_BYTES),
    )
)
def test_a_batch_round_trips_at_every_width(message: BatchMessage) -> None:
    assert BatchMessage.unpack(message.pack()) == message


@pytest.mark.parametrize("name", UNPACK)
@pytest.mark.parametrize("other", PACKETS)
def test_another_kind_of_packet_is_refused(name: str, other: str) -> None:
    if name == other:
        UNPACK[name](PACKETS[other])
        return
    with pytest.raises(LinkError, match=f"expected (a )?{name}"):
        UNPACK[name](PACKETS[other])


@pytest.mark.parametrize("name", UNPACK)
@pytest.mark.parametrize("cut", ["empty", "kind", "half", "last"])
def test_a_packet_that_is_cut_is_refused(name: str, cut: str) -> None:
    packet = PACKETS[name]
    length = {"empty": 0, "kind": 1, "half": len(packet) // 2, "last": len(packet) - 1}[cut]
    with pytest.raises(LinkError):
        UNPACK[name](packet[:length])


@pytest.mark.parametrize("name", ["welcome", "hello"])
@pytest.mark.parametrize("body", [b"{}", b"[]", b"1", b'{"other": 1}', b"\xff"])
def test_a_packet_of_other_content_is_refused(name: str, body: bytes) -> None:
    with pytest.raises(LinkError):
        UNPACK[name](PACKETS[name][:1] + body)


def test_a_done_of_an_unknown_status_is_refused() -> None:
    packet = bytearray(DONE.pack())
    packet[1] = 9
    with pytest.raises(LinkError):
        DoneMessage.unpack(bytes(packet))


def test_the_largest_welcome_fits_its_limit() -> None:
    models = tuple(
        replace(
            MLP,
            name=f"{number:063}",
            layers=tuple(range(100)),
            weights_id="w" * 300,
            kernels=(("kernel_of_a_long_name", "graph"),) * 4,
        )
        for number in range(100)
    )
    assert len(replace(WELCOME, models=models).pack()) < packets.MAX_WELCOME_BYTES


def test_a_batch_of_many_kernels_fits_its_limit() -> None:
    entries = tuple(
        Entry(f"kernel_of_a_long_name_{number}", "graph", 10**6, 2**60, 2**60, 2**60)
        for number in range(40)
    )
    assert len(DONE._replace(entries=entries).pack()) < packets.MAX_MESSAGE_BYTES


def test_packets_keep_their_bounds(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    for packet in PACKETS.values():
        packets.send(ours, packet)
    received = [packets.receive(theirs, packets.MAX_WELCOME_BYTES) for _ in PACKETS]
    assert received == list(PACKETS.values())


def test_a_descriptor_travels(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    fd = os.memfd_create("test")
    os.write(fd, b"content")
    packets.send(ours, HELLO.pack(), fd)
    os.close(fd)
    packet, received = packets.receive_with_fd(theirs)
    assert Hello.unpack(packet) == HELLO
    assert os.pread(received, 100, 0) == b"content"
    os.close(received)


def test_a_packet_without_its_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    packets.send(ours, HELLO.pack())
    with pytest.raises(LinkError, match="expected a descriptor"):
        packets.receive_with_fd(theirs)


def test_a_closed_peer(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(LinkError, match="the peer is gone"):
        packets.send(ours, HELLO.pack())
    with pytest.raises(LinkError, match="the peer closed the link"):
        packets.receive(ours)
    with pytest.raises(LinkError):
        packets.receive_with_fd(ours)


def test_a_peer_that_leaves_a_packet_unread(pair: tuple[socket.socket, socket.socket]) -> None:
    # The kernel then reports a reset, not an end.
    ours, theirs = pair
    packets.send(ours, WELCOME.pack())
    theirs.close()
    with pytest.raises(LinkError):
        packets.receive_with_fd(ours)


def test_nothing_to_read_is_no_fault(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        packets.receive(ours)


def test_the_socket_file_must_be_new(tmp_path: Path) -> None:
    path = str(tmp_path / "w.sock")
    with packets.listen(path) as server:
        assert server.type == socket.SOCK_SEQPACKET
        with pytest.raises(OSError, match="in use"):
            packets.listen(path)


def test_native_integers_are_fine_on_one_machine() -> None:
    assert BATCH.pack()[-9 - PACKED_BYTES : -1 - PACKED_BYTES] == (10**18).to_bytes(
        8, sys.byteorder
    )
