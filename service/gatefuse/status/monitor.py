"""Takes samples while somebody looks, and draws the picture that they are shown."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any

from gatefuse.status.drawing import draw
from gatefuse.status.facts import NOT_PLACED, Facts
from gatefuse.status.history import STEPS, History
from gatefuse.status.samples import Sample, Samples

log = logging.getLogger(__name__)

STEP_S = 1.0
MOST_BUSY = 0.1
"""Share of the driver's time that sampling may take: with very many series steps get longer."""
_DIGITS = 6


class Monitor:
    """One for a service. Costs nothing where nobody looks, and goes on for a history's length after the last look."""

    def __init__(self, collect: Callable[[], Iterable[Sample]], step_s: float = STEP_S) -> None:
        """`collect` reads the metrics."""
        self.facts: Callable[[], Facts] = lambda: NOT_PLACED
        self._collect = collect
        self._step_s = step_s
        self._started_unix_s = round(time.time())
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._history = History()
        self._looked_s = 0.0
        self._body = b""
        self._sampling: threading.Thread | None = None
        self._stopped = threading.Event()

    def look(self) -> bytes:
        """The picture now, as JSON."""
        with self._lock:
            self._looked_s = time.monotonic()
            if self._sampling is None and not self._stopped.is_set():
                self._history.clear()
                self._sample()
                self._sampling = threading.Thread(target=self._run, name="status", daemon=True)
                self._sampling.start()
            return self._body

    def stop(self) -> None:
        """Takes no more samples."""
        self._stopped.set()
        if (sampling := self._sampling) is not None:
            sampling.join()

    def _run(self) -> None:
        pause_s = self._step_s
        while not self._stopped.wait(pause_s):
            began_s, worked_s = time.monotonic(), time.thread_time()
            with self._lock:
                if began_s - self._looked_s > STEPS * self._step_s:
                    self._sampling = None
                    return
                try:
                    self._sample()
                except Exception:
                    # The metrics' files change under the reader: the next step finds them whole.
                    log.warning("the status page missed a sample", exc_info=True)
            took_s, worked_s = time.monotonic() - began_s, time.thread_time() - worked_s
            pause_s = max(self._step_s - took_s, worked_s / MOST_BUSY)

    def _sample(self) -> None:
        now_s = time.monotonic()
        samples = Samples(self._collect())
        self._history.add(now_s, samples)
        drawn = draw(
            self.facts(),
            samples,
            self._history.window,
            self._started_unix_s,
            now_s - self._started_s,
            self._history.points,
            self._history.recent,
        )
        self._body = json.dumps(_plain(drawn), separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """A dataclass and all in it as JSON has it, with fewer digits: a picture has thousands of quotients."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
