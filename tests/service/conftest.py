"""A running fake server for the tests of clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FAKE_SERVER = Path(__file__).with_name("fake_server.py")


@pytest.fixture(scope="session")
def fake_url() -> Iterator[str]:
    """The address of a fake server: see ``fake_server.py`` for its models."""
    process = subprocess.Popen(
        [sys.executable, str(FAKE_SERVER)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the fake server did not start"
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()
