"""Timestamps of some requests, as JSON lines in the file that the operator named."""

import json
import logging
import os
from itertools import count
from pathlib import Path
from typing import Any

from gatefuse.frontend.requests.job import Job
from gatefuse.frontend.telemetry import Exchange
from gatefuse.run_folder.settings import Settings, TraceSettings

log = logging.getLogger(__name__)


class _Sampler:
    """Every n-th request, until there were enough."""

    def __init__(self, settings: TraceSettings) -> None:
        self._rate = settings.trace_rate
        self._left = settings.trace_count if settings.trace_level != "OFF" else 0
        self._seen = 0

    def takes(self) -> bool:
        """Whether this request is one of them."""
        if not self._left:
            return False
        self._seen += 1
        if self._seen % self._rate:
            return False
        self._left -= 1  # without an end it stays below zero
        return True


class Tracer:
    """Writes one frontend's traces; frontends write whole lines, so they may share the file."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """Appends to `path`. Raises OSError if it cannot be opened."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._numbers = count(1)
        self._lines: list[str] = []
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Traces as the settings say from now on; rates and counts begin anew."""
        self._settings = settings
        self._samplers: dict[str, _Sampler] = {}
        self._shared = _Sampler(settings.trace)
        self._ready_at = max(1, settings.trace.log_frequency)
        self.write()

    def __call__(self, exchange: Exchange) -> None:
        """A request has ended; only answered ones are traced."""
        job = exchange.job
        if job is None or exchange.code != "OK":
            return
        if self._sampler(job.request.model.name).takes():
            self._lines.append(json.dumps(self._trace(job, exchange.ended_s)))

    def flush(self) -> None:
        """Writes what has come together, if it is as much as the settings ask for."""
        if len(self._lines) >= self._ready_at:
            self.write()

    def write(self) -> None:
        """Writes what has come together."""
        if not self._lines:
            return
        text = "\n".join([*self._lines, ""]).encode()
        self._lines.clear()
        try:
            os.write(self._fd, text)
        except OSError as error:
            log.error("traces could not be written: %s", error.strerror)

    def _sampler(self, model: str) -> _Sampler:
        if model not in self._settings.model_traces:
            return self._shared
        sampler = self._samplers.get(model)
        if sampler is None:
            sampler = self._samplers[model] = _Sampler(self._settings.trace_of(model))
        return sampler

    def _trace(self, job: Job, end_s: float) -> dict[str, Any]:
        sealed_s = job.accepted_s + job.cost.queue_s
        sent_s = sealed_s + job.times.input_s
        back_s = sent_s + job.times.compute_s
        times_s = {
            "QUEUE_START": job.accepted_s,
            "COMPUTE_START": sealed_s,
            "COMPUTE_INPUT_END": sent_s,
            "COMPUTE_OUTPUT_START": back_s,
            "REQUEST_END": end_s,
        }
        request = job.request
        return {
            "id": next(self._numbers),
            "pid": os.getpid(),
            "model_name": request.model.name,
            "request_id": request.request_id,
            "layer": request.layer,
            "rows": request.rows,
            "batch_rows": job.cost.batch_rows,
            "timestamps": [{"name": name, "ns": int(s * 1e9)} for name, s in times_s.items()],
        }
