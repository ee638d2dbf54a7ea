"""The rules read series that the service has; each alert is explained, and tested both ways."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.grafana.boards import BOARDS
from tests.deploy.series import DCGM, check_series

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
RUNBOOK = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules_of(name: str) -> list[dict[str, Any]]:
    groups = loaded(FOLDER / "rules" / name)["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDINGS = rules_of("recordings.yml")
ALERTS = rules_of("alerts.yml")
ALERT_NAMES = sorted({rule["alert"] for rule in ALERTS})
CASES = {path.name: path for path in sorted((FOLDER / "rule_tests").glob("*.yml"))}


@pytest.mark.parametrize("rule", RECORDINGS + ALERTS, ids=lambda rule: next(iter(rule.values())))
def test_every_series_and_label_exists(
    rule: dict[str, Any], labels_of_series: dict[str, set[str]]
) -> None:
    of_prometheus = {"up": None, **{one["record"]: None for one in RECORDINGS}}
    check_series(rule["expr"], {**labels_of_series, **DCGM, **of_prometheus})


def test_the_latency_objective_is_a_bucket_of_the_histogram() -> None:
    from gatefuse.metrics.families import DURATION_BUCKETS_S

    edges = {float(e) for rule in RECORDINGS for e in re.findall(r'le="([\d.]+)"', rule["expr"])}
    assert edges == {0.05}
    assert edges <= set(DURATION_BUCKETS_S)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    # The label is empty where no deployment says where the documents are.
    document, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert document == "{{ $externalLabels.gatefuse_docs }}docs/alerts.md"
    assert anchor == rule["alert"].lower()


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    assert sorted(re.findall(r"^## (\w+)$", RUNBOOK, re.M)) == ALERT_NAMES


def cases_of(alert: str) -> list[list[Any]]:
    """What is expected of an alert, each time that it is tested."""
    tests = [test for path in CASES.values() for test in loaded(path)["tests"]]
    return [
        case["exp_alerts"]
        for test in tests
        for case in test.get("alert_rule_test", [])
        if case["alertname"] == alert
    ]


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_every_alert_is_tested_both_ways_and_without_its_series(alert: str) -> None:
    cases = cases_of(alert)
    assert any(cases), "it never fires"
    assert not all(cases), "it is never quiet"
    missing = CASES["missing.yml"].read_text(encoding="utf-8")
    assert f"# series missing: {alert}\n      - alertname: {alert}\n" in missing


def test_configurations_have_the_job_that_the_rules_look_for() -> None:
    for name in ("prometheus.yml", "kubernetes.yml", "ray.yml"):
        config = loaded(FOLDER / name)
        assert config["rule_files"] == ["rules/*.yml"]
        assert "gatefuse" in [job["job_name"] for job in config["scrape_configs"]]
    (endpoint,) = loaded(FOLDER / "pod-monitor.yaml")["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "gatefuse"}]


def test_a_scrape_ends_before_the_next_begins() -> None:
    for name in ("prometheus.yml", "kubernetes.yml", "ray.yml"):
        settings = loaded(FOLDER / name)["global"]
        assert int(settings["scrape_timeout"][:-1]) < int(settings["scrape_interval"][:-1])


def test_only_clusters_are_watched_through_ray() -> None:
    jobs = {job["job_name"]: job for job in loaded(FOLDER / "ray.yml")["scrape_configs"]}
    keep = jobs["ray"]["metric_relabel_configs"][0]
    assert keep["action"] == "keep"
    assert re.fullmatch(keep["regex"], "ray_node_cpu_utilization")
    assert re.fullmatch(keep["regex"], "ray_actors")
    assert not re.fullmatch(keep["regex"], "ray_serve_num_http_requests_total")


def test_the_runbook_names_panels_that_there_are() -> None:
    titles = {panel.title for board in BOARDS.values() for panel in board.panels}
    titles |= {board.title for board in BOARDS.values()}
    named = set(re.findall(r'"([^"]+)"', RUNBOOK.replace("\n", " ")))
    assert len(named) > 15
    assert named <= titles
