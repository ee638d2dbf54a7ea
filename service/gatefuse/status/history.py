"""The last minutes of a service, second by second."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gatefuse.status.drawing import point
from gatefuse.status.picture import Point
from gatefuse.status.samples import Change, Labels, Samples

STEPS = 300
WINDOW_S = 5.0
"""What "now" covers: long enough for a 99th percentile of a few hundred requests, short enough to follow by eye."""
RECENT_STEPS = 60


class History:
    """Keeps the samples of one window, and of each step before only what is drawn of it."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._moments: deque[tuple[float, Samples]] = deque()
        self._points: deque[tuple[float, Point]] = deque(maxlen=STEPS)
        self._models: deque[dict[Labels, float]] = deque(maxlen=RECENT_STEPS)

    def add(self, now_s: float, samples: Samples) -> None:
        """The metrics at `now_s`, by a clock that only goes forward."""
        if self._moments:
            before_s, before = self._moments[-1]
            change = Change(before, samples, now_s - before_s)
            self._points.append((now_s, point(change, samples)))
            requests = change.by("gatefuse_inference_duration_seconds_count", "model", "backend")
            self._models.append({key: gain / change.seconds for key, gain in requests.items()})
        self._moments.append((now_s, samples))
        while len(self._moments) > 2 and now_s - self._moments[1][0] >= WINDOW_S:
            self._moments.popleft()

    def clear(self) -> None:
        """Forgets everything: nobody looked for so long that there would be a gap."""
        self._moments.clear()
        self._points.clear()
        self._models.clear()

    @property
    def window(self) -> Change | None:
        """The last seconds, WINDOW_S of them once they have passed; None before the second moment."""
        if len(self._moments) < 2:
            return None
        (before_s, before), (now_s, samples) = self._moments[0], self._moments[-1]
        return Change(before, samples, now_s - before_s)

    @property
    def points(self) -> tuple[Point, ...]:
        """Every step, oldest first."""
        if not self._points:
            return ()
        now_s = self._points[-1][0]
        return tuple(replace(each, age_s=now_s - then_s) for then_s, each in self._points)

    @property
    def recent(self) -> dict[Labels, list[float]]:
        """Requests a second of each model and backend, step by step, oldest first."""
        keys = dict.fromkeys(key for step in self._models for key in step)
        return {key: [step.get(key, 0.0) for step in self._models] for key in keys}
