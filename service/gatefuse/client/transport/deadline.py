"""One deadline for all that a call takes: look-ups, registrations, attempts."""

from __future__ import annotations

import time
from numbers import Real
from typing import Any

LONGEST_TIMEOUT_S = 1e9


class Deadline:
    """A moment on the monotonic clock."""

    __slots__ = ("at_s", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        """``timeout_s`` seconds from now. Raises as ``checked_timeout_s`` does."""
        self.timeout_s = checked_timeout_s(timeout_s)
        self.at_s = time.monotonic() + self.timeout_s

    @property
    def has_passed(self) -> bool:
        """True from then on."""
        return time.monotonic() >= self.at_s

    def left_s(self) -> float:
        """Seconds until then; 0 when it has passed."""
        return max(self.at_s - time.monotonic(), 0.0)


def checked_timeout_s(timeout_s: Any) -> float:
    """Returns a timeout that can be kept.

    Raises TypeError for what is no number, ValueError for a number that is not positive or not finite.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real):
        raise TypeError(f"timeout_s must be a number of seconds, not {timeout_s!r}")
    if not 0 < float(timeout_s) <= LONGEST_TIMEOUT_S:
        raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
    return float(timeout_s)
