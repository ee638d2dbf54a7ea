"""Wakes an event loop at a given instant, to some ten microseconds.

The timers of asyncio and uvloop are rounded to whole milliseconds, as long as many a request. An
open loop would measure its own clock. Linux' timerfd has no such grid, and an event loop can wait
for it like for a socket.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000
_COUNTER_BYTES = 8

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Pacer:
    """One timer on the running event loop; one task may wait on it at a time."""

    def __init__(self) -> None:
        """Makes the timer. Raises OSError if the kernel has none to give."""
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = asyncio.get_running_loop()
        self._fired = asyncio.Event()
        self._loop.add_reader(self._fd, self._on_fire)

    def close(self) -> None:
        """Gives the timer back."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    async def wait_until(self, instant_s: float) -> None:
        """Returns at that instant of ``time.monotonic``, or in the loop's next turn if it has passed."""
        if instant_s <= time.monotonic():
            await asyncio.sleep(0)
            return
        self._fired.clear()
        seconds, nanoseconds = divmod(round(instant_s * _NS_PER_S), _NS_PER_S)
        spec = _TimerSpec(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        await self._fired.wait()

    def _on_fire(self) -> None:
        os.read(self._fd, _COUNTER_BYTES)
        self._fired.set()
