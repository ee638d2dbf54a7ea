"""Servers are asked at once, and every way in which one can fail to answer is a sentence."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.service.status.pictures import picture

from gatefuse.commands.top.asking import Servers, status_url


class Server(ThreadingHTTPServer):
    """Answers with what a test says, after as long as it says."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = json.dumps(asdict(picture())).encode()
        self.status = 200
        self.later: bytes | None = None  # the body of all answers but the first
        self.pause_s = 0.0
        self.paths: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        time.sleep(self.server.pause_s)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)
        self.server.body = self.server.later or self.server.body

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def _failure(url: str, timeout_s: float = 5.0) -> str:
    with Servers([url], timeout_s) as servers:
        (answer,) = servers.ask()
    assert answer.picture is None
    return answer.failure


def test_a_server_that_answers(server: Server) -> None:
    with Servers([server.address]) as servers:
        (answer,) = servers.ask()
    assert answer.url == f"http://{server.address}"
    assert answer.picture == picture()
    assert answer.text == server.body
    assert server.paths == ["/status.json"]


def test_one_that_is_gone_and_one_that_is_slow_hold_up_no_other(server: Server) -> None:
    server.pause_s = 0.3
    began_s = time.monotonic()
    with Servers([server.address, "127.0.0.1:1", server.address]) as servers:
        answers = servers.ask()
    assert time.monotonic() - began_s < 0.6
    assert [answer.picture is not None for answer in answers] == [True, False, True]
    assert answers[1].failure == "connection refused"


def test_one_that_does_not_answer_in_time(server: Server) -> None:
    server.pause_s = 1.0
    assert "time" in _failure(server.address, 0.1) or "0.1 s" in _failure(server.address, 0.1)


def test_one_that_is_something_else(server: Server) -> None:
    server.body = b"<html>"
    assert _failure(server.address) == "it does not answer with JSON"
    server.status = 404
    assert _failure(server.address) == "it answers 404 Not Found"


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (b"\x1b]0;PWNED\x07\x1b[31mred", r"it answers 500 \x1b]0;PWNED\x07\x1b[31mred"),
        (b"a" * 10_000, f"it answers 500 {'a' * 184}…"),
    ],
)
def test_what_it_answers_is_fit_for_a_terminal(status: bytes, failure: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.recv(1024)
            connection.sendall(b"HTTP/1.0 500 " + status + b"\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert _failure(f"127.0.0.1:{listening.getsockname()[1]}") == failure
        thread.join()


def test_one_that_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.recv(1024)
            connection.sendall(b"\x00\x00\x04\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        failure = _failure(f"127.0.0.1:{listening.getsockname()[1]}")
        assert failure == r"BadStatusLine: \x00\x00\x04\n"
        thread.join()


def test_a_host_that_is_not_there() -> None:
    assert _failure("nowhere.invalid:1") == "no such host"


def test_it_goes_through_no_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Servers([server.address]) as servers:
        assert servers.ask()[0].picture is not None


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost", "http://localhost:8002/status.json"),
        ("localhost:9", "http://localhost:9/status.json"),
        ("http://h:9", "http://h:9/status.json"),
        ("http://h:9/", "http://h:9/status.json"),
        ("http://h:9/metrics", "http://h:9/status.json"),
        ("http://h:9/status.json", "http://h:9/status.json"),
        ("https://h/gatefuse/", "https://h/gatefuse/status.json"),
        ("[::1]:9", "http://[::1]:9/status.json"),
    ],
)
def test_what_is_meant(given: str, url: str) -> None:
    assert status_url(given) == url


@pytest.mark.parametrize("given", ["", "file:///etc/passwd", "ftp://h", "h:port", "h:99999", "//"])
def test_what_is_no_server(given: str) -> None:
    with pytest.raises(ValueError, match="'"):
        status_url(given)
