"""Clients' memory as the engine of a GPU holds it, with a driver that only takes notes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from gatefuse.link.memory import Move, OpenMemory
from gatefuse.worker.engine.base import DirectMove
from gatefuse.worker.engine.device_memory import (
    LockedFile,
    MemoryRefusedError,
    SharedDeviceMemory,
    covers,
    move_rows,
)

CONTENT = bytes(range(251)) * 200


class NotingDriver:
    """Locks and opens what it is told to, and keeps account."""

    def __init__(self, *, refuses: bool = False, found_bytes: int = 0) -> None:
        self.locked: dict[int, int] = {}
        self.opened: set[int] = set()
        self._refuses = refuses
        self._found_bytes = found_bytes

    def lock(self, address: int, byte_size: int) -> None:
        if self._refuses:
            raise MemoryRefusedError("no")
        self.locked[address] = byte_size

    def unlock(self, address: int) -> None:
        del self.locked[address]

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        self.opened.add(4096)
        return 4096, self._found_bytes

    def close_handle(self, address: int) -> None:
        self.opened.remove(address)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "memory"
    made.write_bytes(CONTENT)
    return made


@pytest.mark.parametrize("offset", [0, 1, 4096, 5000])
def test_a_file_is_locked_once_and_seen_from_its_offset(file: Path, offset: int) -> None:
    driver = NotingDriver()
    fd = os.open(file, os.O_RDWR)
    memory = LockedFile(OpenMemory(1, 30_011, offset), fd, driver)
    os.close(fd)
    assert list(driver.locked.values()) == [offset % 4096 + 30_011]
    assert bytes(memory.tensor.numpy()) == CONTENT[offset:][:30_011]
    memory.tensor[7] = 0xA5
    assert file.read_bytes()[offset + 7] == 0xA5
    memory.close()
    assert not driver.locked


def test_a_file_that_cannot_be_used(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    try:
        with pytest.raises(MemoryRefusedError):
            LockedFile(OpenMemory(1, 100), fd, NotingDriver(refuses=True))
        with pytest.raises(ValueError, match="length"):
            LockedFile(OpenMemory(1, len(CONTENT) + 1), fd, NotingDriver())
    finally:
        os.close(fd)


def test_a_handle_to_fewer_bytes_is_closed_again() -> None:
    driver = NotingDriver(found_bytes=99)
    with pytest.raises(MemoryRefusedError, match="99 bytes, not 100"):
        SharedDeviceMemory(OpenMemory(1, 100, handle="00" * 64), driver, torch.device("cpu"))
    assert not driver.opened


def test_moves_between_memory_and_a_lane(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    memory = LockedFile(OpenMemory(1, 1000), fd, NotingDriver())
    os.close(fd)
    there = DirectMove(memory, Move(True, 1, start=10, offset=300, size=77))
    back = DirectMove(memory, Move(False, 1, start=500, offset=4, size=33))
    buffer = torch.zeros(1000, dtype=torch.uint8)
    move_rows((there, back), buffer, inward=True)
    assert bytes(buffer.numpy()) == bytes(300) + CONTENT[10:87] + bytes(623)
    buffer[:] = torch.arange(1000) % 199
    move_rows((there, back), buffer, inward=False)
    assert file.read_bytes()[500:533] == bytes(buffer[4:37].numpy())
    assert file.read_bytes()[:500] == CONTENT[:500]
    assert covers((there, back), 77, inward=True)
    assert not covers((there, back), 78, inward=True)
    assert covers((there, back), 33, inward=False)
    assert not covers((), 0, inward=True)
