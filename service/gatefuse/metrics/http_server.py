"""A WSGI server for a few readers on a trusted network: none of them can keep the others out, by being slow or many."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import WSGIApplication

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
SLOW_S = 10.0
"""How long a client may keep a connection waiting for its next byte."""


class HttpServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, MAX_CONNECTIONS at most: the one that is open longest makes room for the next."""

    daemon_threads = True
    # A thread that waits for a slow client must not keep the service from ending.
    block_on_close = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Listens."""
        self._open: dict[Any, None] = {}
        self._opening = threading.Lock()
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Makes room, then answers on a thread."""
        with self._opening:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The answer is out, or the client gone."""
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left, or was too slow, is no fault of the service."""
        log.debug("a reader of the metrics port went away", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = SLOW_S

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a scrape comes every few seconds."""

    def get_stderr(self) -> Any:
        """Where wsgiref writes tracebacks of the application: the log has them."""
        return _LogStream()


class _LogStream:
    def write(self, text: str) -> int:
        if text.strip():
            log.error("%s", text.rstrip())
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def start(
    host: str, port: int, application: WSGIApplication
) -> tuple[HttpServer, threading.Thread]:
    """Serves on a thread of its own. Raises OSError where the port is taken."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    kind = type("_Server", (HttpServer,), {"address_family": family})
    server: HttpServer = make_server(str(address[0]), port, application, kind, _Handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread
