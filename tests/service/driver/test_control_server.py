"""The driver's end of the frontends' line, where who asked does not wait."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gatefuse.driver.control_server import ControlServer
from gatefuse.frontend.control_client import CONTROL_SOCKET


def test_who_goes_before_the_answer_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked, may_answer = threading.Event(), threading.Event()

    def answer(_: Mapping[str, Any]) -> None:
        asked.set()
        assert may_answer.wait(5)

    server = ControlServer(tmp_path, answer)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / CONTROL_SOCKET))
            client.sendall(json.dumps({"operation": "load"}).encode() + b"\n")
            assert asked.wait(5)
        may_answer.set()
        end_s = time.monotonic() + 5
        while not caplog.records and time.monotonic() < end_s:
            time.sleep(0.01)
    finally:
        server.shutdown()
        server.server_close()
    (record,) = caplog.records
    assert "nobody waits" in record.message
    assert (record.levelname, record.exc_info) == ("INFO", None)
