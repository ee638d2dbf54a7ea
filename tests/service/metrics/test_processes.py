"""Figures of processes: those of /proc, added up over the processes that took one place."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from gatefuse.metrics.node_families import CPU_SECONDS, OPEN_FDS, RESIDENT_BYTES
from gatefuse.metrics.processes import Processes, look

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WORKER = ("worker-0",)


class FakeProc:
    """A /proc in which processes come, work and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, pid: int, *, cpu_s: float, started: int = 7, state: str = "S") -> None:
        """A process whose name is as awkward as one may be."""
        fields = [state, *["0"] * 10, str(int(cpu_s * TICKS_PER_S)), "0", *["0"] * 6, str(started)]
        folder = self.folder / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "fd" / "0").touch()
        (folder / "stat").write_text(f"{pid} (a) b (c) {' '.join(fields)} 0 0\n")
        (folder / "statm").write_text("9 3 0 0 0 0 0\n")

    def remove(self, pid: int) -> None:
        """It has ended."""
        for name in ("fd/0", "stat", "statm"):
            (self.folder / str(pid) / name).unlink()
        (self.folder / str(pid) / "fd").rmdir()
        (self.folder / str(pid)).rmdir()


def test_figures_are_those_of_the_kernel() -> None:
    seen, process = look(os.getpid()), psutil.Process()
    assert seen is not None
    assert seen.pid == os.getpid()
    # The listing of descriptors is one itself.
    assert abs((seen.open_fds or 0) - process.num_fds()) <= 2
    assert abs(seen.resident_bytes - process.memory_info().rss) < 8 * 2**20
    times = process.cpu_times()
    assert -0.001 < times.user + times.system - seen.cpu_s < 1


def test_a_process_that_is_not_there_has_no_figures(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.look_at({"worker-0": 12})
    assert not any(processes.series().values())


def test_a_zombie_has_no_figures(tmp_path: Path) -> None:
    FakeProc(tmp_path).put(12, cpu_s=1, state="Z")
    assert look(12, tmp_path) is None


def test_processor_time_goes_on_when_a_process_is_replaced(tmp_path: Path) -> None:
    proc, processes = FakeProc(tmp_path), Processes(tmp_path)
    proc.put(12, cpu_s=5)
    processes.look_at({"worker-0": 12})
    proc.put(12, cpu_s=8)
    processes.look_at({"worker-0": 12})
    assert processes.series()[CPU_SECONDS] == {WORKER: 8}
    proc.remove(12)
    processes.look_at({"worker-0": 12})
    # It is gone: its memory is nowhere, and what it did is not forgotten.
    assert processes.series()[RESIDENT_BYTES] == {}
    assert processes.series()[CPU_SECONDS] == {WORKER: 8}
    proc.put(13, cpu_s=2)
    processes.look_at({"worker-0": 13})
    assert processes.series()[CPU_SECONDS] == {WORKER: 10}
    assert processes.series()[RESIDENT_BYTES] == {WORKER: 3 * os.sysconf("SC_PAGESIZE")}
    assert processes.series()[OPEN_FDS] == {WORKER: 1}


def test_a_number_that_another_program_was_given_is_not_ours(tmp_path: Path) -> None:
    proc, processes = FakeProc(tmp_path), Processes(tmp_path)
    proc.put(12, cpu_s=5, started=7)
    processes.look_at({"worker-0": 12})
    proc.put(12, cpu_s=100, started=8)
    processes.look_at({"worker-0": 12})
    assert processes.series()[RESIDENT_BYTES] == {}
    assert processes.series()[CPU_SECONDS] == {WORKER: 5}
