"""Runs the `interpreted*.py` suites under Triton's interpreter, in processes where it is on from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITES = sorted(Path(__file__).parent.rglob("interpreted*.py"))


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.stem)
def test_interpreted_kernels(suite: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(suite), "-p", "no:cacheprovider"]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
