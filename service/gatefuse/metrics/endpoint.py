"""The metrics port: /metrics for Prometheus, / for people, /status.json for programs; all the sum of all processes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app, multiprocess
from prometheus_client.registry import Collector

from gatefuse.metrics import http_server
from gatefuse.metrics.buffers import counting
from gatefuse.metrics.node import this_node
from gatefuse.metrics.reading import ProcessFiles, collected
from gatefuse.metrics.registry import service_registry
from gatefuse.run_folder import metrics_folder
from gatefuse.status.monitor import Monitor
from gatefuse.status.page import page

Header = tuple[str, str]
_ALLOWED = "GET, HEAD, OPTIONS"
# Of every answer: it is for this reader and this moment, and no other site may use it.
_ALWAYS: tuple[Header, ...] = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)
_WORTH_GZIP_BYTES = 1024
_FAST_GZIP = 1


@dataclass(frozen=True, slots=True)
class _Answer:
    body: bytes
    content_type: str
    status: str = "200 OK"
    headers: tuple[Header, ...] = field(default=())


Handler = Callable[[WSGIEnvironment], _Answer]


def process_died(pid: int) -> None:
    """Removes the gauges of a dead process; its counters stay."""
    if not counting():
        return
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


class Endpoint:
    """What is served on the metrics port."""

    def __init__(self, registry: CollectorRegistry, monitor: Monitor) -> None:
        """`registry` collects the sum over all processes, `monitor` watches the same."""
        self._monitor = monitor
        self._metrics = make_wsgi_app(registry)
        self._handlers: dict[str, Handler] = {
            "/": _page,
            "/metrics": self._metrics_now,
            "/status.json": self._status,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a request."""
        method = environ["REQUEST_METHOD"]
        handler = self._handlers.get(environ.get("PATH_INFO", "") or "/")
        if handler is None:
            answer = _plain("404 Not Found", "there are /, /metrics and /status.json")
        elif method == "OPTIONS":
            answer = _Answer(b"", "text/plain", headers=(("Allow", _ALLOWED),))
        elif method not in ("GET", "HEAD"):
            answer = _plain("405 Method Not Allowed", f"use {_ALLOWED}", ("Allow", _ALLOWED))
        else:
            answer = handler(environ)
        length = ("Content-Length", str(len(answer.body)))
        content_type = ("Content-Type", answer.content_type)
        start_response(answer.status, [content_type, length, *answer.headers, *_ALWAYS])
        return [] if method == "HEAD" else [answer.body]

    def _metrics_now(self, environ: WSGIEnvironment) -> _Answer:
        return _of(self._metrics, {**environ, "REQUEST_METHOD": "GET"})

    def _status(self, environ: WSGIEnvironment) -> _Answer:
        body = self._monitor.look()
        headers: tuple[Header, ...] = (("Vary", "Accept-Encoding"),)
        if len(body) > _WORTH_GZIP_BYTES and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, _FAST_GZIP)
            headers += (("Content-Encoding", "gzip"),)
        return _Answer(body, "application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class Serving:
    """A metrics port that is served; `monitor.facts` may be set once they are known."""

    port: int
    monitor: Monitor
    _server: http_server.HttpServer
    _thread: threading.Thread

    def shutdown(self) -> None:
        """Answers nobody any more, and frees the port."""
        self.monitor.stop()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve(host: str, port: int, node: Collector = this_node) -> Serving:
    """Serves the sum over all processes at http://host:port/metrics, and the status page.

    Args:
        host: Address to listen on.
        port: 0 picks a free one.
        node: Collects the series that are in no process' file.

    Raises:
        OSError: the port is taken, or the host is none of this machine's.
    """
    registry = service_registry(node)
    files = ProcessFiles(metrics_folder.folder())
    monitor = Monitor(lambda: chain(files.samples(), collected([node])))
    server, thread = http_server.start(host, port, Endpoint(registry, monitor))
    return Serving(server.server_port, monitor, server, thread)


def _page(environ: WSGIEnvironment) -> _Answer:
    body, policy = page()
    return _Answer(body, "text/html; charset=utf-8", headers=(("Content-Security-Policy", policy),))


def _plain(status: str, text: str, *headers: Header) -> _Answer:
    return _Answer(f"{text}\n".encode(), "text/plain; charset=utf-8", status, headers)


def _of(application: WSGIApplication, environ: WSGIEnvironment) -> _Answer:
    """What another application answers."""
    kept: list[tuple[str, Sequence[Header]]] = []

    def keep(status: str, headers: Sequence[Header], *_: object) -> Callable[[bytes], object]:
        kept.append((status, headers))
        return lambda _: None

    body = b"".join(application(environ, keep))
    status, headers = kept[0]
    named = dict(headers)
    content_type = named.pop("Content-Type", "text/plain")
    return _Answer(body, content_type, status, tuple(named.items()))
