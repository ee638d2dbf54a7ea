"""What a scrape finds from the first on: workers that start, and counters at zero before anything was counted."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import numpy as np
import pytest
from tests.integration.harness import CHECKPOINT, Scrape, Service, free_port, wait_until

from gatefuse.client.blocking import Client

pytestmark = pytest.mark.slow

START_S = 60.0
DEVICES = {"cpu:0", "cpu:1"}
HIDDEN = 256
CONFIG = {
    "device": "cpu",
    "models": [
        {"name": "ffn", "checkpoint": str(CHECKPOINT), "backend": "eager", "replicas": len(DEVICES)}
    ],
}
# What batches count, by labels that only a worker knows.
OF_BATCHES = (
    "gatefuse_kernel_launches_total",
    "gatefuse_dram_bytes_modelled_total",
    "gatefuse_flops_modelled_total",
    "gatefuse_device_busy_seconds_total",
)


def of_batches(scrape: Scrape) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {key: value for key, value in scrape.series.items() if key[0] in OF_BATCHES}


def devices(scrape: Scrape) -> set[str]:
    return {
        dict(labels)["device"]
        for name, labels in scrape.series
        if name == "gatefuse_device_busy_seconds_total"
    }


def test_from_the_first_scrape_to_the_first_batch(tmp_path: Path) -> None:
    port = free_port()
    service = Service(tmp_path, {**CONFIG, "metrics_port": port})
    service.metrics_url = f"http://127.0.0.1:{port}/metrics"

    def scraped() -> Scrape | None:
        try:
            return service.scrape()
        except urllib.error.URLError:
            return None

    try:
        first = wait_until(scraped, START_S, "the metrics port")
        assert first is not None
        assert first.by_label("gatefuse_replicas", "state") == {"starting": len(DEVICES)}
        service.wait_ready().wait_complete()
        # A frontend connects to a worker moments after that worker is ready.
        wait_until(lambda: devices(service.scrape()) == DEVICES, START_S, "every device's counters")
        before = service.scrape_idle()
        assert before.value("gatefuse_model_ready", model="ffn") == 1
        assert {name for name, _ in of_batches(before)} == set(OF_BATCHES)
        assert not any(of_batches(before).values())
        with Client(service.url) as client:
            client.infer("ffn", np.ones((3, HIDDEN), np.float32), layer=0)
        after = service.scrape_idle()
        assert after.value("gatefuse_kernel_launches_total") == 5
        assert of_batches(after).keys() == of_batches(before).keys()
        service.stop()
    finally:
        if service.process.poll() is None:
            service.kill()
