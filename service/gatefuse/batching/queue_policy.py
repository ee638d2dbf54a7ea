"""Who waits before whom, and for how long: what a model's configuration and a request's parameters make of it."""

import enum
import math
from dataclasses import dataclass


class TimeoutAction(enum.StrEnum):
    """What becomes of a request that waited as long as it may."""

    REJECT = "reject"  # it is refused
    DELAY = "delay"  # it waits on, behind all that have not waited so long


@dataclass(frozen=True, slots=True)
class Priorities:
    """The priority levels of a model: 1 is served first. Without levels all requests are alike."""

    levels: int = 0
    default_level: int = 0

    def level(self, asked: int) -> int:
        """The level of a request with the parameter `priority`: the default for 0, and for a level there is not."""
        return asked if 1 <= asked <= self.levels else self.default_level


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long the requests of a model may wait to be sealed into a batch, and how many may wait."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_s: float = 0.0  # 0: for ever
    allow_timeout_override: bool = True
    max_queue_size: int = 0  # requests of one priority level; 0: any number

    def timeout_s(self, asked_us: int) -> float:
        """How long a request with the parameter `timeout` may wait: it may ask for less than the default, not more."""
        default_s = self.default_timeout_s or math.inf
        if asked_us and self.allow_timeout_override:
            return min(asked_us / 1e6, default_s)
        return default_s


NO_PRIORITIES = Priorities()
NO_POLICY = QueuePolicy()
