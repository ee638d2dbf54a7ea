"""Times of device work in which forms take turns, and of the host that launches it."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gatefuse_kernels.bench.results import Spread

Call = Callable[[], object]
"""Queues work on the current stream."""

_HEAD_CYCLES = 1_000_000
"""Half a millisecond of idling on the device..."""

_CYCLES_PER_CALL = 30_000
"""...and 15 µs for each call, which is more than the host needs to queue it."""

_HOST_HEAD_CYCLES = 20_000_000
"""10 ms of idling, under which calls are only queued."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure a set of forms.

    Attributes:
        rounds: the most timed rounds.
        seconds: what they should take at most...
        least: ...but so many there are in any case.
    """

    rounds: int
    seconds: float = 1.5
    least: int = 15

    def rounds_for(self, round_s: float) -> int:
        """How many rounds of this length."""
        fitting = int(self.seconds / max(round_s, 1e-6))
        return min(self.rounds, max(self.least, fitting))


def take_turns(forms: Sequence[Sequence[Call]], pace: Pace) -> list[Spread]:
    """Microseconds per call of each form; its calls differ only in the memory they read.

    The forms alternate round by round, in an order drawn anew for each, so that clocks, heat and
    neighbours fall on all alike. Events enclose a form's whole turn. The stream is kept busy ahead
    of them, so that they time the device and not the host that feeds it.
    """
    order = random.Random(0)
    _round(forms, order)
    start_s = time.perf_counter()
    _round(forms, order)
    rounds = pace.rounds_for(time.perf_counter() - start_s)
    for _ in range(max(2, rounds // 10)):
        _round(forms, order)
    times = [_round(forms, order) for _ in range(rounds)]
    return [spread(list(own)) for own in zip(*times, strict=True)]


def _round(forms: Sequence[Sequence[Call]], order: random.Random) -> list[float]:
    calls = sum(len(form) for form in forms)
    spans: dict[int, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
    torch.cuda._sleep(_HEAD_CYCLES + _CYCLES_PER_CALL * calls)
    for number in order.sample(range(len(forms)), len(forms)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for call in forms[number]:
            call()
        end.record()
        spans[number] = (start, end)
    torch.cuda.synchronize()
    return [
        start.elapsed_time(end) * 1000 / len(forms[number])
        for number, (start, end) in sorted(spans.items())
    ]


def host_time(call: Call, device_us: float, batches: int = 7) -> Spread:
    """Microseconds the host spends on one call while the device is busy with something else.

    Nothing is waited for between calls, and there are too few of them to fill the launch queue.

    Args:
        call: launches without a graph.
        device_us: what the device needs for it; long ones are called less often.
        batches: measurements, each of many calls.
    """
    calls = min(100, max(10, int(10_000 / device_us)))
    call()
    times = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(batches):
            torch.cuda.synchronize()
            torch.cuda._sleep(_HOST_HEAD_CYCLES)
            start_s = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start_s) * 1e6 / calls)
    finally:
        if was_enabled:
            gc.enable()
    torch.cuda.synchronize()
    return spread(times)


def spread(times_us: Sequence[float]) -> Spread:
    """Median, 10th and 90th percentile of two times or more."""
    tenths = statistics.quantiles(times_us, n=10, method="inclusive")
    return Spread(statistics.median(times_us), tenths[0], tenths[-1], len(times_us))
