"""The /metrics endpoint: the sum over every process of the service."""

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import multiprocess, start_http_server

from gatefuse.metrics.registry import service_registry


def process_died(pid: int) -> None:
    """Removes the gauges of a dead process; its counters stay."""
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


def serve(host: str, port: int) -> tuple[int, WSGIServer, threading.Thread]:
    """Serves the sum over all processes at http://host:port/metrics; port 0 picks a free one.

    Returns the port, and the server and its thread, for `server.shutdown()`.
    """
    server, thread = start_http_server(port, addr=host, registry=service_registry())
    return server.server_port, server, thread
