"""Runs a program that compiles kernels for GPUs that need not be there, and reads what it says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

ROOT = Path(__file__).parents[3]


def facts_of(module: str, timeout_s: float) -> list[Facts]:
    """One of each compiled kernel, from the JSON lines that `python -m module` prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment.setdefault("TRITON_CACHE_DIR", str(ROOT / ".cache" / "triton"))
    result = subprocess.run(
        [sys.executable, "-m", module],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def offenders(kernels: list[Facts], broken: Callable[[Facts], bool]) -> list[Facts]:
    """Those that break a rule."""
    return [each for each in kernels if broken(each)]
