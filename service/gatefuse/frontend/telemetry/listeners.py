"""Who listens to a frontend's requests: the log, the traces that clients turn on, OpenTelemetry, exemplars."""

import asyncio
from typing import TYPE_CHECKING

from gatefuse import metrics
from gatefuse.config import ServiceConfig
from gatefuse.frontend.telemetry import BatchTraces, Exchange, Observer, RequestLog
from gatefuse.frontend.telemetry.spans import Address
from gatefuse.frontend.telemetry.trace_files import Tracer
from gatefuse.missing_packages import missing_package
from gatefuse.run_folder import metrics_folder
from gatefuse.run_folder.settings import Settings
from gatefuse.trace_context import Sampler

if TYPE_CHECKING:
    from gatefuse.frontend.telemetry.otlp import (
        SpanExport,  # an extra, imported only where it is on
    )

# What a drain waits for the collector; the spans that are left are given up.
CLOSE_S = 3.0


class FrontendTelemetry:
    """The listeners of one frontend."""

    def __init__(self, config: ServiceConfig, settings: Settings, observer: Observer) -> None:
        """Listens to `observer` as the configuration says.

        Raises:
            OSError: the file for traces cannot be opened.
            RuntimeError: spans are to be exported, and the packages for that are not installed.
        """
        self.batch_traces = BatchTraces()
        self._tracer: Tracer | None = None
        self._export: SpanExport | None = None
        self._exemplars: metrics.ExemplarFile | None = None
        observer.add(RequestLog(config.slow_request_ms / 1e3))
        if config.trace_file is not None:
            self._tracer = Tracer(config.trace_file, settings)
            observer.add(self._tracer)
        if config.tracing is not None:
            self._export = _span_export(config)
            self.batch_traces = BatchTraces(self._export.batch_ended)
            observer.add(self._export.request_ended)
            if config.metrics:
                self._exemplars = metrics.ExemplarFile(metrics_folder.folder())
                observer.add(self._note_exemplar)
            observer.sampler = Sampler(config.tracing.sample_ratio)

    def configure(self, settings: Settings) -> None:
        """Clients changed what is traced."""
        if self._tracer is not None:
            self._tracer.configure(settings)

    def flush(self) -> None:
        """Hands over what has come together; to be called a few times a second."""
        if self._tracer is not None:
            self._tracer.flush()
        if self._export is not None:
            self._export.flush()
        if self._exemplars is not None:
            self._exemplars.flush()

    async def close(self) -> None:
        """Hands over everything; no more requests end."""
        if self._tracer is not None:
            self._tracer.write()
        if self._export is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._export.close, CLOSE_S)

    def _note_exemplar(self, exchange: Exchange) -> None:
        if exchange.trace is not None and self._exemplars is not None:
            labels = exchange.method, exchange.outcome
            self._exemplars.note(*labels, exchange.duration_s, exchange.trace_id)


def _span_export(config: ServiceConfig) -> "SpanExport":
    assert config.tracing is not None
    try:
        from gatefuse.frontend.telemetry.otlp import SpanExport
    except ModuleNotFoundError as error:
        package = missing_package(error)
        raise RuntimeError(f"{package} is missing: pip install 'gatefuse[tracing]'") from error
    return SpanExport(config.tracing.endpoint, Address(config.host, config.grpc_port))
