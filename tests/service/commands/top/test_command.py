"""The command: what it prints, with which status it ends, on a terminal and off it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from tests.service.commands.top.test_asking import Server
from tests.service.status.pictures import AFTER, FACTS, STARTED_UNIX_S, picture, samples

from gatefuse import cli
from gatefuse.commands.top import command
from gatefuse.status.drawing import draw


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def test_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", server.address, "--once"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"http://{server.address}  ready  ")
    assert "ffn-eager" in out
    assert err == ""


def test_once_waits_until_there_are_rates(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = draw(FACTS, samples(AFTER), None, STARTED_UNIX_S, 100.0)
    server.body, server.later = json.dumps(asdict(first)).encode(), server.body
    monkeypatch.setattr(command, "WAIT_S", 0.0)
    assert cli.main(["top", server.address, "--once"]) == 0
    assert "req/s 10.0" in capsys.readouterr().out
    assert len(server.paths) == 2


def test_json_is_what_the_servers_told(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", server.address, "127.0.0.1:1", "--json"]) == 69
    out, err = capsys.readouterr()
    assert json.loads(out) == [
        {"url": f"http://{server.address}", "status": json.loads(server.body)},
        {"url": "http://127.0.0.1:1", "error": "connection refused"},
    ]
    assert err == "gatefuse: http://127.0.0.1:1: connection refused\n"


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "127.0.0.1:1", "--once"]) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gatefuse: http://127.0.0.1:1: connection refused\n"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "host:port"])
def test_what_is_no_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", url]) == 2
    assert url in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "0.1", "nan", "soon"])
def test_what_is_no_interval(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["top", "--interval", interval])
    assert caught.value.code == 2


def _run(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command_line = [sys.executable, "-m", "gatefuse.cli", "top", *arguments]
    return subprocess.Popen(
        command_line, stderr=subprocess.PIPE, preexec_fn=_heed_ctrl_c, **options
    )


def _heed_ctrl_c() -> None:
    # A shell starts what it runs in the background deaf to it, and these tests may be run so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_off_a_terminal_it_prints_lines_until_its_reader_leaves(server: Server) -> None:
    process = _run(server.address, "--interval", "0.2", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    seen = 0
    while seen < 2:
        seen += process.stdout.readline().startswith(b"http://")
    process.stdout.close()
    assert process.wait(20) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        self.process = _run(*arguments, stdin=theirs, stdout=theirs, env=environment)
        os.close(theirs)
        self.shown = ""

    def wait_for(self, condition: Callable[[str], bool]) -> None:
        """Reads until what was shown meets it."""
        deadline_s = time.monotonic() + 30
        while not condition(self.shown):
            assert time.monotonic() < deadline_s, self.shown[-2000:]
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, keys: str) -> None:
        """As typed."""
        os.write(self._ours, keys.encode())

    def end(self) -> tuple[int, str]:
        """Its status, and what it wrote to stderr."""
        code = self.process.wait(20)
        assert self.process.stderr is not None
        err = self.process.stderr.read().decode()
        self.process.stderr.close()
        os.close(self._ours)
        return code, err


def test_on_a_terminal_it_follows_until_q_and_survives_a_restart(server: Server) -> None:
    pytest.importorskip("rich")
    terminal = Terminal(server.address, "--interval", "0.2")
    terminal.wait_for(lambda shown: "ffn-eager" in shown and "q quits" in shown)
    body = server.body
    server.status, server.body = 503, b""
    terminal.wait_for(lambda shown: "it answers 503" in shown)
    # A restarted server counts from zero.
    restarted = draw(FACTS, samples(""), None, STARTED_UNIX_S + 1000, 3.0)
    server.status, server.body = 200, json.dumps(asdict(restarted)).encode()
    terminal.wait_for(lambda shown: "up 0:00:03" in shown)
    server.body = body
    terminal.press("xq")
    assert terminal.end() == (0, "")


def test_ctrl_c_ends_it_too(server: Server) -> None:
    pytest.importorskip("rich")
    terminal = Terminal(server.address, "--interval", "0.2")
    terminal.wait_for(lambda shown: "q quits" in shown)
    terminal.process.send_signal(signal.SIGINT)
    code, err = terminal.end()
    assert (code, err) == (0, "")


def test_without_rich_once_still_works(server: Server) -> None:
    program = (
        "import sys; sys.modules['rich'] = None; sys.modules['prometheus_client'] = None\n"
        "sys.modules['yaml'] = sys.modules['pydantic'] = sys.modules['torch'] = None\n"
        f"from gatefuse import cli; sys.exit(cli.main(['top', {server.address!r}, '--once']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert picture().grpc in result.stdout
