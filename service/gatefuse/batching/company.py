"""Whether a request that could leave now is worth holding back for others: a pure estimate from recent traffic.

Clients that were answered a moment ago are about to send again. As many as were, within the time a request may wait,
are expected back; a batch that has as many requests gains nothing by waiting longer. And where no two requests have
been here at once lately, one client sends one request after the other: nobody else is expected at all.
"""

from collections import deque

# How long one overlap of two requests makes more of them likely.
OVERLAP_MEMORY_S = 0.05


class Company:
    """The recent traffic of one queue."""

    __slots__ = ("_answered_s", "_last_overlap_s", "_present", "_window_s")

    def __init__(self, window_s: float) -> None:
        """`window_s` is how long a request may wait for others; 0 expects nobody."""
        self._window_s = window_s
        self._answered_s: deque[float] = deque()
        self._last_overlap_s = float("-inf")
        self._present = 0

    def __repr__(self) -> str:
        """The live state, for logs and tests."""
        return f"Company(present={self._present}, answered={len(self._answered_s)})"

    def arrived(self, now_s: float) -> None:
        """A request came."""
        if self._present:
            self._last_overlap_s = now_s
        self._present += 1

    def left(self, now_s: float) -> None:
        """A request was answered, or its caller left."""
        self._present -= 1
        if self._window_s:
            self._forget_before(now_s - self._window_s)
            self._answered_s.append(now_s)

    def expected(self, now_s: float) -> int:
        """Requests that a batch should wait for: as many as left within the window."""
        self._forget_before(now_s - self._window_s)
        return len(self._answered_s) if now_s < self._last_overlap_s + OVERLAP_MEMORY_S else 0

    def _forget_before(self, time_s: float) -> None:
        while self._answered_s and self._answered_s[0] < time_s:
            self._answered_s.popleft()
