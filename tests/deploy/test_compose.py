"""What Docker Compose reads in the compose files, by its own parser."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import compose
import pytest

from gatefuse.config import ServiceConfig

ROOT = Path(__file__).parents[2]
# Not the command that the package installs: that one exits 0 whatever the parser says.
PROGRAM = Path(compose.__file__).parent / "docker-compose"
CUDA = ("-f", "deploy/docker/compose.cuda.yaml")


def parse(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), "-f", "docker-compose.yml", *arguments, "config", "--format", "json"]
    clean = {key: value for key, value in os.environ.items() if key != "GRAFANA_PASSWORD"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def services(*arguments: str) -> dict[str, Any]:
    result = parse(*arguments, GRAFANA_PASSWORD="only-parsed")
    assert result.returncode == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)["services"]
    return parsed


def test_every_port_is_published_on_loopback_only() -> None:
    published = {
        name: [(port["host_ip"], port["target"]) for port in service["ports"]]
        for name, service in services().items()
    }
    assert published == {
        "server": [("127.0.0.1", 8001), ("127.0.0.1", 8002)],
        "prometheus": [("127.0.0.1", 9090)],
        "grafana": [("127.0.0.1", 3000)],
    }


def test_grafana_does_not_start_without_a_password() -> None:
    result = parse()
    assert result.returncode != 0
    assert "GRAFANA_PASSWORD" in result.stderr


def test_grafana_lets_nobody_in_anonymously() -> None:
    environment = services()["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD"] == "only-parsed"
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_USERS_ALLOW_SIGN_UP"] == "false"


@pytest.mark.parametrize("files", [(), CUDA], ids=["cpu", "cuda"])
def test_every_mounted_file_and_dockerfile_is_there(files: Sequence[str]) -> None:
    for service in services(*files).values():
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume" or Path(volume["source"]).exists()
        if "build" in service:
            context = Path(service["build"]["context"])
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("files", [(), CUDA], ids=["cpu", "cuda"])
def test_the_server_serves_a_shipped_configuration(files: Sequence[str]) -> None:
    command = services(*files)["server"]["command"]
    assert command[0] == "serve"
    assert (ROOT / command[1]).is_file()


def test_stopping_waits_longer_than_draining() -> None:
    grace = services()["server"]["stop_grace_period"]
    assert grace.endswith("s")
    assert float(grace.removesuffix("s")) > ServiceConfig.model_fields["drain_timeout_s"].default


def test_prometheus_scrapes_the_server_and_grafana_reads_prometheus() -> None:
    names = services()
    scrape = (ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
    source = (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text("utf-8")
    assert "server" in names
    assert '"server:8002"' in scrape
    assert "prometheus" in names
    assert "http://prometheus:9090" in source


def test_the_cuda_overlay_asks_for_the_gpus() -> None:
    (device,) = services(*CUDA)["server"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert services(*CUDA)["server"]["build"]["dockerfile"].endswith("Dockerfile.cuda")
