"""A real Prometheus beside a service: Debian's build, the shipped rules, one scrape a second."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from deploy.grafana.prometheus_api import Prometheus, PrometheusError
from tests.integration.harness import REPOSITORY, free_port, wait_until

FOLDER = REPOSITORY / "deploy" / "prometheus"
SCRAPE_S = 1
EVALUATE_S = 2
START_S = 60.0
STOP_S = 20.0


def find_tool(name: str) -> Path:
    """The program `prometheus` or `promtool`: on the PATH, or unpacked from Debian's package."""
    found = subprocess.run(
        [str(FOLDER / "find-tool.sh"), name],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    return Path(found.stdout.strip())


@contextmanager
def watching(folder: Path, metrics_url: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the service at `metrics_url` by the shipped configuration; stopped afterwards."""
    address = f"127.0.0.1:{free_port()}"
    config = _config(folder, metrics_url.removeprefix("http://").removesuffix("/metrics"))
    command = [
        str(find_tool("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    log = folder / "prometheus.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        prometheus = Prometheus(f"http://{address}")

        def scraped() -> bool:
            assert process.poll() is None, log.read_text()
            return _is_up(prometheus)

        wait_until(scraped, START_S, "a first scrape")
        yield prometheus
    finally:
        process.terminate()
        process.wait(STOP_S)


def _config(folder: Path, target: str) -> Path:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {
        "scrape_interval": f"{SCRAPE_S}s",
        "scrape_timeout": f"{SCRAPE_S}s",
        "evaluation_interval": f"{EVALUATE_S}s",
    }
    config["rule_files"] = [str(FOLDER / pattern) for pattern in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _is_up(prometheus: Prometheus) -> bool:
    try:
        found = prometheus.get("query", query='up{job="gatefuse"} == 1')
    except PrometheusError:
        return False
    return bool(found["result"])
