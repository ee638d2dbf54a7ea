"""A service that counts nothing: no port, no files, and every answer as before."""

from __future__ import annotations

import os
import signal
import subprocess

import numpy as np
import psutil
import pytest
from tests.integration.harness import Service, Start, wait_until

from gatefuse.client.blocking import Client, InferenceError
from gatefuse.commands.models import run

IDENTITY = {"name": "identity", "kind": "elementwise", "expression": "x", "columns": 8}


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start({"device": "cpu", "metrics": False, "models": [IDENTITY]})


@pytest.mark.slow
def test_it_serves_and_keeps_no_metrics(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert service.metrics_url == "off"
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    with Client(service.url) as client:
        np.testing.assert_array_equal(client.infer("identity", x).output, x)
        with pytest.raises(InferenceError):
            client.infer("identity", x[:, :5])
    assert service.run_dir is not None
    assert not (service.run_dir / "metrics").exists()
    assert not list(service.run_dir.rglob("*.db"))
    listening = [
        connection.laddr.port
        for connection in psutil.Process(service.process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port in (8002, service.port)
    ]
    assert listening == []
    # What ModelStatistics tells is a service of its own.
    assert run(service.url, as_json=False) == 0
    assert "identity" in capsys.readouterr().out


@pytest.mark.slow
def test_a_frontend_that_dies_is_replaced(service: Service) -> None:
    (frontend,) = service.frontend_pids()
    os.kill(frontend, signal.SIGKILL)
    wait_until(lambda: service.frontend_pids() not in ([], [frontend]), 60, "another frontend")
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    with Client(service.url, timeout_s=60) as client:
        np.testing.assert_array_equal(client.infer("identity", x).output, x)
    # The driver has noticed by then, and watches on.
    with pytest.raises(subprocess.TimeoutExpired):
        service.process.wait(2)
