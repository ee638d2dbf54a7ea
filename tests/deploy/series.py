"""Which series a PromQL expression reads, and by which of their labels."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A name with what selects among its series. Strings hold what looks like names: they are cut out before.
SELECTOR = re.compile(r"\b(gatefuse_\w+|DCGM_\w+|up|ALERTS|gatefuse:[\w:]+)\b(\{[^}]*\})?")
STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
# NVIDIA's exporter is no part of this repository: what is read of it, and the labels that it puts there.
DCGM = {
    name: {"gpu", "Hostname", "UUID", "modelName", "instance", "job"}
    for name in (
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_DEV_XID_ERRORS",
    )
}
# What Prometheus adds to every series that it scrapes.
OF_PROMETHEUS = {"job", "instance"}


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Each series' name with the labels that it is matched by."""
    bare = STRING.sub('""', expression)
    return [
        (name, set(re.findall(r"(\w+)\s*(?:=|!)", matchers)))
        for name, matchers in SELECTOR.findall(bare)
    ]


def check_series(expression: str, known: Mapping[str, set[str] | None]) -> None:
    """Fails the test unless every series is known, with the labels that it is matched, summed and joined by.

    Args:
        expression: PromQL that reads one series at least.
        known: the labels of each series; None for one that Prometheus itself makes.
    """
    found = selectors(expression)
    assert found, expression
    labels: dict[str, set[str]] = {}
    for name, matched in found:
        assert name in known, name
        own = known[name]
        if own is not None:
            labels[name] = own | OF_PROMETHEUS
            assert matched <= labels[name], name
    # A join has labels of one side only.
    joined = set().union(*labels.values()) if "group_left" in expression else None
    for name, own in labels.items():
        assert grouped_by(expression) <= (joined or own), name


def grouped_by(expression: str) -> set[str]:
    """The labels that sums, quantiles and joins keep."""
    bare = STRING.sub('""', expression)
    groups = re.findall(r"\b(?:by|on) \(([^)]*)\)", bare)
    return {label for group in groups for label in re.findall(r"\w+", group)}
