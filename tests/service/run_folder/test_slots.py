"""Names that outlive a worker's process, and what a process leaves to say how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatefuse.run_folder.slots import (
    cause_of_end,
    device_label,
    fault_marker,
    hang_marker,
    slot_of,
    socket_name,
    worker_name,
)


def test_a_slot_is_read_from_its_socket() -> None:
    assert (worker_name(11), socket_name(11)) == ("worker-11", "worker-11.sock")
    assert [slot_of(Path("/run") / socket_name(slot)) for slot in (0, 7, 11)] == [0, 7, 11]
    assert slot_of(Path("/run/worker.sock")) == 0


@pytest.mark.parametrize(
    ("device", "label"), [("cpu", "cpu:3"), ("cuda:0", "cuda:3"), ("cuda", "cuda:3")]
)
def test_no_two_workers_have_the_same_device(device: str, label: str) -> None:
    assert device_label(device, 3) == label


def test_how_a_worker_ended(tmp_path: Path) -> None:
    path = tmp_path / socket_name(0)
    assert cause_of_end(path, 5) == ("crash", "")
    fault_marker(path, 5).write_text("ecc")
    assert cause_of_end(path, 5) == ("gpu", "ecc")
    assert cause_of_end(path, 6) == ("crash", "")
    hang_marker(path, 6).touch()
    assert cause_of_end(path, 6) == ("hang", "timeout")
