"""What the deployment's tests share."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# In a process of its own: prometheus_client decides once, at import, where values live.
LIST_FAMILIES = """
import json, prometheus_client.metrics as kinds, gatefuse.metrics.families as metrics
families = [value for value in vars(metrics).values() if isinstance(value, kinds.MetricWrapperBase)]
print(json.dumps([[f._name, f._type, list(f._labelnames)] for f in families]))
"""


@pytest.fixture(scope="session")
def labels_of_series() -> dict[str, set[str]]:
    """Each series name that the service can export, with its labels."""
    listed = subprocess.run(
        [sys.executable, "-c", LIST_FAMILIES],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    series: dict[str, set[str]] = {}
    for name, kind, labels in json.loads(listed.stdout):
        for suffix in SUFFIXES[kind]:
            series[name + suffix] = {*labels, "le"} if suffix == "_bucket" else set(labels)
    return series
