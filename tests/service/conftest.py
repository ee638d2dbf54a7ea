"""Running servers: a fake one for the tests of clients, a real one before a fake worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.service.bed import TestBed

from gatefuse.frontend.dispatch.dispatcher import Dispatcher

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


@pytest_asyncio.fixture
async def bed() -> AsyncIterator[TestBed]:
    """A server on this loop; its worker connects when a test says so."""
    bed = TestBed(Dispatcher(asyncio.get_running_loop()))
    await bed.start()
    yield bed
    await bed.stop()
