"""The metrics port over HTTP: what it answers, in which form, and that no reader keeps others out."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from gatefuse.metrics import http_server
from gatefuse.metrics.endpoint import Endpoint
from gatefuse.status.monitor import Monitor
from gatefuse.status.page import page
from gatefuse.status.samples import Sample

Answer = tuple[int, http.client.HTTPMessage, bytes]


class Bed:
    """A server on a free port."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        Counter("rows", "Rows.", ["model"], registry=registry).labels("a").inc(3)
        self.failure: Exception | None = None
        self.monitor = Monitor(self._samples, step_s=60.0)
        self._server, _ = http_server.start("127.0.0.1", 0, Endpoint(registry, self.monitor))
        self.port = self._server.server_port

    def _samples(self) -> list[Sample]:
        if self.failure is not None:
            raise self.failure
        labels = {"model": "<b>", "backend": "eager"}
        return [Sample("gatefuse_batch_rows_sum", labels, 3)] * 40

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        return reply.status, reply.headers, body

    def stop(self) -> None:
        """Frees the port."""
        self.monitor.stop()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.stop()


def test_metrics_as_text_and_as_openmetrics(bed: Bed) -> None:
    status, headers, body = bed.ask("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'rows_total{model="a"} 3.0' in body
    status, headers, body = bed.ask("/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    (family,) = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert family.samples[0].value == 3


def test_metrics_can_be_compressed_and_chosen(bed: Bed) -> None:
    _, headers, body = bed.ask("/metrics", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert b"rows_total" in gzip.decompress(body)
    assert b"rows_total" in bed.ask("/metrics?name[]=rows_total")[2]
    assert b"rows_total" not in bed.ask("/metrics?name[]=other")[2]


def test_the_page(bed: Bed) -> None:
    status, headers, body = bed.ask("/")
    assert (status, body) == (200, page().body)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"] == page().policy
    assert bed.ask("/?from=bookmark")[0] == 200


def test_the_status(bed: Bed) -> None:
    status, headers, body = bed.ask("/status.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    told = json.loads(body)
    assert (told["state"], told["totals"]["rows"]) == ("starting", 120)
    assert "Content-Encoding" not in headers


def test_a_long_status_is_compressed_for_who_can_read_that(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatefuse.metrics.endpoint._WORTH_GZIP_BYTES", 10)
    _, headers, body = bed.ask("/status.json", Accept_Encoding="br, gzip")
    assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert json.loads(gzip.decompress(body))["state"] == "starting"


@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json", "/nothing"])
def test_answers_are_for_this_reader_alone(bed: Bed, path: str) -> None:
    _, headers, _ = bed.ask(path, Origin="http://elsewhere.example")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json"])
def test_head_is_get_without_a_body(bed: Bed, path: str) -> None:
    bed.ask(path)
    status, headers, body = bed.ask(path, "HEAD")
    assert (status, body) == (200, b"")
    _, expected, whole = bed.ask(path)
    assert headers["Content-Type"] == expected["Content-Type"]
    assert int(headers["Content-Length"]) == len(whole)


@pytest.mark.parametrize("path", ["/metric", "/metrics/", "/status.json/x", "/../etc/passwd"])
def test_there_is_nothing_else(bed: Bed, path: str) -> None:
    status, _, body = bed.ask(path)
    assert (status, body) == (404, b"there are /, /metrics and /status.json\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json"])
def test_it_can_only_be_read(bed: Bed, path: str, method: str) -> None:
    status, headers, _ = bed.ask(path, method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD, OPTIONS")


def test_options(bed: Bed) -> None:
    status, headers, body = bed.ask("/metrics", "OPTIONS")
    assert (status, headers["Allow"], body) == (200, "GET, HEAD, OPTIONS", b"")


def test_a_failure_is_a_500_without_internals_and_the_rest_goes_on(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.failure = RuntimeError("/secret/path")
    status, _, body = bed.ask("/status.json")
    assert status == 500
    assert b"secret" not in body
    assert "/secret/path" in caplog.text
    assert bed.ask("/metrics")[0] == 200
    bed.failure = None
    assert bed.ask("/status.json")[0] == 200


def _open(bed: Bed, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", bed.port), timeout=10)
    connection.sendall(sent)
    return connection


def test_slow_readers_keep_nobody_out(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    slow = [_open(bed, b"GET /metrics HTTP/1.1\r\n") for _ in range(12)]
    began_s = time.monotonic()
    for _ in range(3):
        assert bed.ask("/metrics")[0] == 200
    assert time.monotonic() - began_s < http_server.SLOW_S / 2
    # The ones that were there longest made room.
    assert slow[0].recv(1) == b""
    for connection in slow:
        connection.close()


def test_a_reader_that_says_nothing_is_let_go(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.1)
    silent = _open(bed, b"GET / HT")
    assert silent.recv(1) == b""
    silent.close()


def test_a_reader_that_leaves_is_no_error(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        _open(bed, b"GET / HTTP/1.1\r\n\r\n").close()
    assert bed.ask("/metrics")[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_it_stops_while_a_reader_hangs() -> None:
    bed = Bed()
    hanging = _open(bed, b"GET /")
    began_s = time.monotonic()
    bed.stop()
    assert time.monotonic() - began_s < 5
    hanging.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", bed.port), timeout=2)


def test_a_port_that_is_taken(bed: Bed) -> None:
    with pytest.raises(OSError, match="in use"):
        http_server.start("127.0.0.1", bed.port, lambda environ, start: [])


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_it_listens_on_ipv6() -> None:
    server, _ = http_server.start("::1", 0, Endpoint(CollectorRegistry(), Monitor(list)))
    connection = http.client.HTTPConnection("::1", server.server_port, timeout=10)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
    server.shutdown()
    server.server_close()
