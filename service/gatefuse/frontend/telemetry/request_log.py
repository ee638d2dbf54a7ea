"""One line in the log for each request that failed or was slow, so many of a kind and no more."""

import logging
import time
from collections.abc import Callable
from typing import Any

from gatefuse.frontend.telemetry.exchange import Exchange
from gatefuse.logs import FIELDS

log = logging.getLogger(__name__)

BURST = 10
WINDOW_S = 10.0


class _Allowance:
    """BURST lines in each WINDOW_S, and how many were left out since the last."""

    __slots__ = ("_begun_s", "_used", "left_out")

    def __init__(self) -> None:
        self._begun_s = -WINDOW_S
        self._used = 0
        self.left_out = 0

    def takes(self, now_s: float) -> bool:
        if now_s - self._begun_s >= WINDOW_S:
            self._begun_s, self._used = now_s, 0
        if self._used >= BURST:
            self.left_out += 1
            return False
        self._used += 1
        return True


class RequestLog:
    """Writes the lines of one frontend. The kinds are statuses with their reasons, and `slow`: a closed set."""

    def __init__(self, slow_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Answered requests that took `slow_s` or longer are slow."""
        self._slow_s = slow_s
        self._clock = clock
        self._allowances: dict[tuple[str, str], _Allowance] = {}

    def __call__(self, exchange: Exchange) -> None:
        """A request has ended."""
        if exchange.code == "OK" and exchange.duration_s < self._slow_s:
            return
        if not log.isEnabledFor(logging.INFO):
            return
        reason = exchange.reason if exchange.code != "OK" else "slow"
        allowance = self._allowances.setdefault((exchange.code, reason), _Allowance())
        if not allowance.takes(self._clock()):
            return
        fields = _fields(exchange, reason)
        if allowance.left_out:
            fields["left_out"], allowance.left_out = allowance.left_out, 0
        log.info("request", extra={FIELDS: fields})


def _fields(exchange: Exchange, reason: str) -> dict[str, Any]:
    """What the line says: labels as metrics have them, identifiers, sizes and milliseconds."""
    fields: dict[str, Any] = {
        "method": exchange.method,
        "code": exchange.code,
        "reason": reason,
        "request_id": exchange.request_id,
        "trace_id": exchange.trace_id,
        "duration_ms": _ms(exchange.duration_s),
        **exchange.asked_for,
    }
    if (job := exchange.job) is not None:
        fields |= {
            "rows": job.request.rows,
            "queue_ms": _ms(job.cost.queue_s),
            "device_ms": _ms(job.cost.compute_s),
            "batch_rows": job.cost.batch_rows,
        }
    return {key: value for key, value in fields.items() if value != ""}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
