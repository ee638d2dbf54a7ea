"""The audit gauges at the metrics endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRAPE = """
import ast, sys, urllib.request
from gatefuse import metrics
metrics.describe_audit(ast.literal_eval(sys.argv[1]))
served = metrics.serve("127.0.0.1", 0)
print(urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics").read().decode())
served.shutdown()
"""


def scraped(checks: dict[str, tuple[float, float]], folder: Path) -> list[str]:
    """The audit's lines of a scrape."""
    result = subprocess.run(
        [sys.executable, "-c", SCRAPE, repr(checks)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [
        line for line in result.stdout.splitlines() if line.startswith("gatefuse_counter_audit")
    ]


@pytest.mark.parametrize("check", ["launches", "dram_read", "dram_write"])
def test_what_was_audited(check: str, tmp_path: Path) -> None:
    lines = scraped({check: (0.99, 1.75e9)}, tmp_path)
    assert sorted(lines) == [
        f'gatefuse_counter_audit_ratio{{check="{check}"}} 0.99',
        f'gatefuse_counter_audit_timestamp_seconds{{check="{check}"}} 1.75e+09',
    ]


def test_never_audited_is_absent(tmp_path: Path) -> None:
    assert scraped({}, tmp_path) == []
