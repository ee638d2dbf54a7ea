"""When the requests of an open loop are due. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatefuse.commands.loadtest.plan import Load


def arrival_times(
    load: Load, seconds: float, *, part: int, parts: int, seed: int
) -> NDArray[np.float64]:
    """Returns the times, in seconds from the start and in order, at which one process of ``parts`` sends.

    All processes together send ``load.rate`` a second: fixed arrivals are dealt out in turn, and
    several independent Poisson streams are one Poisson stream of the summed rate.
    """
    if load.arrivals == "fixed":
        count = int(np.ceil(seconds * load.rate))
        return np.arange(part, count, parts) / load.rate
    generator = np.random.default_rng([seed, part])
    rate = load.rate / parts
    # Six standard deviations above the mean number: enough gaps to reach the end in practice; the
    # loop makes it sure.
    chunk = int(seconds * rate + 6 * np.sqrt(seconds * rate) + 16)
    times = np.cumsum(generator.exponential(1 / rate, chunk))
    while times[-1] < seconds:
        more = times[-1] + np.cumsum(generator.exponential(1 / rate, chunk))
        times = np.concatenate([times, more])
    return times[times < seconds]
