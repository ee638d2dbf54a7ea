"""What the deployment's tests share."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# In a process of its own: prometheus_client decides once, at import, where values live.
LIST_FAMILIES = """
import json, prometheus_client.metrics as kinds
from gatefuse.metrics import families, node_families
known = [value for value in vars(families).values() if isinstance(value, kinds.MetricWrapperBase)]
found = [[each._name, each._type, list(each._labelnames)] for each in known]
of_node = [value for value in vars(node_families).values() if isinstance(value, node_families.NodeFamily)]
print(json.dumps([*found, *([each.name, each.kind, list(each.labels)] for each in of_node)]))
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
