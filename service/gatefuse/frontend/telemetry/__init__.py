"""What is told of single requests: identifiers, spans, log lines, exemplars. Sums over many are `gatefuse.metrics`.

`Observer` is the request path's one hook: it makes an `Exchange` for each inference request and hands it, once it has
ended, to whoever listens. Only `otlp` knows OpenTelemetry, and is imported only where spans are exported.
"""

from gatefuse.frontend.telemetry.batch_trace import BatchTraces
from gatefuse.frontend.telemetry.exchange import Exchange
from gatefuse.frontend.telemetry.observer import Listener, Metadata, Observer
from gatefuse.frontend.telemetry.request_log import RequestLog

__all__ = [
    "BatchTraces",
    "Exchange",
    "Listener",
    "Metadata",
    "Observer",
    "RequestLog",
]
