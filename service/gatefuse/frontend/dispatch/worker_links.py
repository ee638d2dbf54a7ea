"""A frontend's links to its workers, each replaced by a new one when what the worker serves has changed."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gatefuse.frontend.dispatch.worker_link import WorkerLink

# A worker that does not answer by then is being started again: the new link finds it, as the old one would have.
REFRESH_TIMEOUT_S = 10.0


class WorkerLinks:
    """One link to each worker, and those that finish what they were sent."""

    def __init__(self, paths: Sequence[Path], make: Callable[[Path], WorkerLink]) -> None:
        """`make` makes a link, which is then opened."""
        self._make = make
        self._links = [make(path) for path in paths]
        self._retired: list[WorkerLink] = []

    def open(self) -> None:
        """Connects."""
        for link in self._links:
            link.open()

    def close(self) -> None:
        """Closes all for good."""
        for link in (*self._links, *self._retired):
            link.close()

    def kill_if_hung(self, now_s: float) -> None:
        """Kills the workers that are silent for too long."""
        self._retired = [link for link in self._retired if not link.closed]
        for link in (*self._links, *self._retired):
            link.kill_if_hung(now_s)

    def serving(self, key: str) -> set[str]:
        """The workers, by the names of their sockets, that serve this load of a model."""
        return {link.path.name for link in self._links if link.ready and key in link.models}

    async def refresh(self, names: Sequence[str]) -> None:
        """Connects to the workers of these names anew, and then lets the old links end."""
        changed = [link for link in self._links if link.path.name in names]
        fresh = {link.path: self._make(link.path) for link in changed}
        for link in fresh.values():
            link.open()
        waiting = asyncio.gather(*(link.connected.wait() for link in fresh.values()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting, REFRESH_TIMEOUT_S)
        self._links = [fresh.get(link.path, link) for link in self._links]
        self._retired += changed
        for link in changed:
            link.retire()
