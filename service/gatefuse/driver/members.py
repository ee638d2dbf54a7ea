"""The actors of a service as its driver knows them: what each last said of itself, and whether its process is there."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatefuse import metrics
from gatefuse.frontend.process import FrontendReport
from gatefuse.metrics.processes import Seen, look
from gatefuse.run_folder.slots import cause_of_end
from gatefuse.worker.process import WorkerReport

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Member:
    """One actor and what was last heard of it."""

    name: str
    actor: Any
    pid: int = 0  # 0 before its first report


@dataclass(slots=True)
class FrontendMember(Member):
    """A frontend."""

    def note(self, report: FrontendReport | None, errors: list[str]) -> None:
        """Takes its report, None where none came; what is wrong goes to `errors`."""
        if report is None:
            return
        if self.pid and report.pid != self.pid:
            metrics.process_died(self.pid)
            log.warning("frontend process %d was replaced by %d", self.pid, report.pid)
        self.pid = report.pid
        if report.error:
            errors.append(report.error)


@dataclass(slots=True)
class WorkerMember(Member):
    """A worker, at its socket."""

    socket_path: Path = Path()
    state: str = "starting"
    owner: metrics.Owner | None = None  # of a device, while it reports
    restarts: int = 0
    _seen: Seen | None = None  # where it can be looked at from here

    def is_gone(self) -> bool:
        """True when the process that last reported has ended, which Ray takes seconds to say."""
        if self._seen is None:
            return False
        now = look(self.pid)
        return now is None or now.started != self._seen.started

    def note(self, report: WorkerReport | None, errors: list[str]) -> None:
        """Takes its report, None where none came; what is wrong goes to `errors`."""
        if report is None:
            self.silent()
            return
        if self.pid and report.pid != self.pid:
            cause, fault = cause_of_end(self.socket_path, self.pid)
            metrics.replica_restarted(cause)
            if fault:
                metrics.this_node.device_failed(fault)
            self.restarts += 1
            log.warning("worker process %d was replaced by %d", self.pid, report.pid)
        self.pid, self.state = report.pid, report.state
        self._seen = look(self.pid)
        self.owner = metrics.Owner(report.pid, report.device)
        if report.error:
            errors.append(report.error)

    def silent(self) -> None:
        """It is not there, or says nothing."""
        self.state = "dead" if self.pid else "starting"
        self.owner = None
