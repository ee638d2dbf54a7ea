"""What the driver makes of the reports of actors, of their silence, and of processes that are gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gatefuse.driver.members import FrontendMember, WorkerMember
from gatefuse.worker.process import WorkerReport

NO_PID = 2**22 + 1  # above what the kernel gives


def _worker(folder: Path) -> WorkerMember:
    return WorkerMember("worker-0", None, socket_path=folder / "worker-0.sock")


def test_a_worker_is_gone_as_soon_as_its_process_is(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    assert not worker.is_gone()
    with subprocess.Popen(["sleep", "60"]) as process:
        worker.note(WorkerReport(process.pid, "ready"), [])
        assert (worker.state, worker.is_gone()) == ("ready", False)
        process.kill()
    assert worker.is_gone()
    worker.silent()
    assert (worker.state, worker.owner) == ("dead", None)
    worker.note(WorkerReport(os.getpid(), "warming"), [])
    assert (worker.state, worker.restarts, worker.is_gone()) == ("warming", 1, False)


def test_a_process_that_cannot_be_looked_at_is_not_gone(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    worker.note(WorkerReport(NO_PID, "ready"), [])
    assert (worker.state, worker.is_gone()) == ("ready", False)


def test_silence_before_the_first_report_is_a_start(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    worker.note(None, [])
    assert (worker.state, worker.restarts) == ("starting", 0)


def test_errors_are_handed_on(tmp_path: Path) -> None:
    errors: list[str] = []
    _worker(tmp_path).note(WorkerReport(NO_PID, "failed", "no memory"), errors)
    assert errors == ["no memory"]


def test_a_silent_frontend_keeps_its_process() -> None:
    frontend = FrontendMember("frontend-0", None, pid=7)
    frontend.note(None, [])
    assert frontend.pid == 7
