"""Memory, descriptors and processor time of the service's processes, read from /proc."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gatefuse.metrics.node_families import CPU_SECONDS, OPEN_FDS, RESIDENT_BYTES, NodeFamily

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = resource.getpagesize()
# Fields of /proc/PID/stat after the command's name, which may hold anything.
_STATE, _UTIME, _STIME, _START = 0, 11, 12, 19


class Seen(NamedTuple):
    """One look at a process; `started` tells it from a later one with the same number."""

    pid: int
    started: int
    cpu_s: float
    resident_bytes: int
    open_fds: int | None  # None where the process belongs to another user


def look(pid: int, proc: Path = Path("/proc")) -> Seen | None:
    """A process now; None when there is none of that number, or it has ended and nobody took note."""
    folder = proc / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[_STATE] == "Z":
        return None
    try:
        open_fds = len(os.listdir(folder / "fd"))
    except PermissionError:
        open_fds = None
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpu_s = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S
    return Seen(pid, int(fields[_START]), cpu_s, pages * _PAGE_BYTES, open_fds)


class Processes:
    """The figures of each place in the service, whatever process takes it."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """`proc` is where the kernel tells of processes."""
        self._proc = proc
        self._cpu_s: dict[str, float] = {}
        self._last: dict[str, Seen] = {}
        self._alive: set[str] = set()

    def look_at(self, pids: Mapping[str, int]) -> None:
        """Looks at the process of each name; one that is not there has no figures but its processor time so far."""
        self._alive.clear()
        for name, pid in pids.items():
            seen, last = look(pid, self._proc), self._last.get(name)
            if seen is None:
                continue
            if last is not None and last.pid == pid and last.started != seen.started:
                continue  # it is gone, and another program was given its number
            before_s = last.cpu_s if last is not None and last.pid == pid else 0.0
            self._cpu_s[name] = self._cpu_s.get(name, 0.0) + max(0.0, seen.cpu_s - before_s)
            self._last[name] = seen
            self._alive.add(name)

    def series(self) -> dict[NodeFamily, dict[tuple[str, ...], float]]:
        """The figures of the last look."""
        alive = {name: self._last[name] for name in sorted(self._alive)}
        return {
            RESIDENT_BYTES: {(name,): seen.resident_bytes for name, seen in alive.items()},
            OPEN_FDS: {
                (name,): seen.open_fds for name, seen in alive.items() if seen.open_fds is not None
            },
            CPU_SECONDS: {(name,): cpu_s for name, cpu_s in sorted(self._cpu_s.items())},
        }
