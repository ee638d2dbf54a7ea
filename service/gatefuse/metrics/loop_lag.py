"""How late an event loop comes to its timers: what every request on it waits for besides its own work."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

SAMPLE_S = 0.02
WINDOW_S = 10.0


class Largest:
    """The largest of the values of the last WINDOW_S seconds; one of each second is kept."""

    def __init__(self) -> None:
        """None yet."""
        self._by_second: deque[tuple[int, float]] = deque()

    def note(self, now_s: float, value: float) -> None:
        """A value, not earlier than the last."""
        second = int(now_s)
        if self._by_second and self._by_second[-1][0] == second:
            value = max(value, self._by_second.pop()[1])
        self._by_second.append((second, value))
        while self._by_second[0][0] <= second - WINDOW_S:
            self._by_second.popleft()

    @property
    def value(self) -> float:
        """Zero where there was none."""
        return max((value for _, value in self._by_second), default=0.0)


class LoopLag:
    """Sets a timer every SAMPLE_S seconds and notes when it rings: a pause below that may be missed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts at once."""
        self._loop = loop
        self._clock = clock
        self._largest = Largest()
        self._set()

    def largest_s(self) -> float:
        """The largest delay of the last ten seconds."""
        return self._largest.value

    def stop(self) -> None:
        """Sets no more timers."""
        self._timer.cancel()

    def _set(self) -> None:
        self._due_s = self._clock() + SAMPLE_S
        self._timer = self._loop.call_later(SAMPLE_S, self._rang)

    def _rang(self) -> None:
        now_s = self._clock()
        self._largest.note(now_s, max(0.0, now_s - self._due_s))
        self._set()
