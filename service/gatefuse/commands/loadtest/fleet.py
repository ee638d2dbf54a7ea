"""The sending processes, led from here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from json import loads
from types import TracebackType
from typing import Any, Self

from gatefuse.commands.loadtest.jobs import (
    CellJob,
    CellReport,
    LoadTestError,
    Setup,
    Target,
    to_line,
)
from gatefuse.malloc import KEEP_BIG_BLOCKS

# All processes start a cell at the same instant, this long after the last one was ready.
_LEAD_S = 0.05
_EXIT_TIMEOUT_S = 10.0

OnTick = Callable[[float], None]
"""Called now and then with the seconds since a cell began."""


class Fleet:
    """Some sending processes; a context manager that ends them."""

    def __init__(self, setup: Setup) -> None:
        """Starts ``setup.parts`` processes. Raises LoadTestError if one cannot read the rows."""
        command = [sys.executable, "-m", "gatefuse.commands.loadtest.process"]
        environment = {**os.environ, **KEEP_BIG_BLOCKS}
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            for _ in range(setup.parts)
        ]
        try:
            for part, process in enumerate(self._processes):
                _send(process, {"setup": asdict(replace(setup, part=part))})
            self._replies()
        except BaseException:
            self.close(at_once=True)
            raise

    def __enter__(self) -> Self:
        """Returns the fleet itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the processes."""
        self.close(at_once=kind is not None)

    def close(self, *, at_once: bool = False) -> None:
        """Ends the processes, in mid-cell if ``at_once``, and does not return before they are gone."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(0 if at_once else _EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def probe(self, target: Target) -> None:
        """Lets one process ask ``target`` for each row on its own, and all take its answers as the right ones."""
        first, *others = self._processes
        _send(first, {"probe": asdict(target)})
        expected = _receive(first)["expected"]
        for process in (first, *others):
            _send(process, {"expect": expected})
        self._replies()

    def run(self, job: CellJob, on_tick: OnTick) -> list[CellReport]:
        """Runs one cell and returns each process' report."""
        for process in self._processes:
            _send(process, {"cell": asdict(job)})
        self._replies()
        start_s = time.monotonic() + _LEAD_S
        for process in self._processes:
            _send(process, {"start": start_s})
        _tick_until(start_s, job.warm_up_s + job.seconds, on_tick)
        return [CellReport.of(reply["report"]) for reply in self._replies()]

    def _replies(self) -> list[dict[str, Any]]:
        return [_receive(process) for process in self._processes]


def _tick_until(start_s: float, seconds: float, on_tick: OnTick) -> None:
    while (elapsed_s := time.monotonic() - start_s) < seconds:
        on_tick(max(0.0, elapsed_s))
        time.sleep(min(0.2, max(0.0, seconds - elapsed_s)))
    on_tick(seconds)


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(to_line(message))
        process.stdin.flush()
    except BrokenPipeError as error:
        raise LoadTestError("a sending process ended early") from error


def _receive(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise LoadTestError("a sending process ended early")
    reply: dict[str, Any] = loads(line)
    if "error" in reply:
        raise LoadTestError(reply["error"])
    return reply
