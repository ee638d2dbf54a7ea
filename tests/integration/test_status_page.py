"""The status page and `gatefuse top` of a running service with a hundred models: what they show is what it counted."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from tests.browser import Page, browsing, needs_chromium
from tests.integration.control import Control
from tests.integration.harness import GATEFUSE, Scrape, Service, Start

from gatefuse import Client

pytestmark = pytest.mark.slow

COLUMNS = 8
MODELS: list[dict[str, Any]] = [
    {"name": "gate", "kind": "elementwise", "expression": "silu(g) * u", "columns": COLUMNS},
    {"name": "gate-eager", "like": "gate", "backend": "eager"},
    {"name": "spare", "kind": "elementwise", "expression": "x * 0.5", "columns": COLUMNS},
    *(
        {
            "name": f"chain-{number:02}",
            "kind": "elementwise",
            "expression": f"x * {number} + 1",
            "columns": COLUMNS,
            "backend": "eager",
        }
        for number in range(97)
    ),
]
# Each row of the models' table by the name in it: the last cell is how many requests were answered.
ANSWERED = """
Object.fromEntries([...document.querySelectorAll('#models-table tbody tr')].map((row) =>
  [row.querySelector('th span').textContent, row.lastChild.textContent]))
"""
# Backend, state and answered requests of each row that is shown.
STATES = """
[...document.querySelectorAll('#models-table tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))
  .map((cells) => [cells[1], cells[2], cells.at(-1)].join(',')).sort()
"""
COMPARED = """
[...document.querySelectorAll('#compare-table tbody tr')].map((row) => [...row.children].map((cell) =>
  cell.querySelector('.measure > span:nth-of-type(2)')?.textContent ?? cell.textContent))
"""
TILES = """
Object.fromEntries([...document.querySelectorAll('.tile')].map((tile) =>
  [tile.children[0].textContent, [tile.children[1].textContent, tile.children[2].textContent]]))
"""


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    config = {"device": "cpu", "models": MODELS, "model_control": "explicit"}
    return start(config)


class Load:
    """Sends to a few models from a thread until the block ends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rows = np.ones((3, COLUMNS), np.float32)
        with Client(self._url) as client:
            while not self._stop.is_set():
                for name in ("gate", "gate-eager"):
                    client.infer(name, {"g": rows, "u": rows})
                client.infer("chain-07", rows)


@pytest.fixture(scope="module")
def page(service: Service) -> Iterator[Page]:
    with browsing() as page:
        page.open(service.metrics_url.removesuffix("metrics"))
        yield page


def _by_model(scrape: Scrape, name: str) -> dict[str, float]:
    return scrape.by_label(name, "model")


@needs_chromium
def test_the_page_under_load_and_after_it(service: Service, page: Page) -> None:
    with Load(service.url):
        page.wait_for("document.title.includes('ready')")
        page.wait_for(f"Number(({TILES})['requests/s'][0].replaceAll(',', '')) > 0")
        page.wait_for(
            "document.querySelector('.tile .spark path:not(.area)').getAttribute('d').includes('L')"
        )
        page.wait_for(
            f"Object.keys({ANSWERED}).length === 20 && Object.keys({ANSWERED}).includes('chain-07')"
        )
    scrape = service.scrape_idle()
    requests = _by_model(scrape, "gatefuse_inference_duration_seconds_count")
    assert set(requests) == {"gate", "gate-eager", "chain-07"}
    total = f"{round(sum(requests.values())):,} answered"
    page.wait_for(f"({TILES})['requests/s'][1] === {json.dumps(total)}")
    page.run("document.getElementById('more').click()")
    shown = page.run(ANSWERED)
    assert len(shown) == 100
    assert {name: round(requests.get(name, 0)) for name in shown} == {
        name: int(text.replace(",", "")) for name, text in shown.items()
    }
    rows = _by_model(scrape, "gatefuse_batch_rows_sum")
    batches = _by_model(scrape, "gatefuse_batch_rows_count")
    launches = _by_model(scrape, "gatefuse_kernel_launches_total")
    compared = {row[0]: row for row in page.run(COMPARED)}
    assert set(compared) == {"gate", "gate-eager"}
    for name, row in compared.items():
        assert row[2] == f"{rows[name] / batches[name]:.2f}"
        assert float(row[3]) == pytest.approx(launches[name] / rows[name], abs=0.005)
        assert row[-1] == f"{round(rows[name]):,}"
    assert not page.problems


def _top(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(GATEFUSE), "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_top_tells_the_same(service: Service) -> None:
    with Client(service.url) as client:
        client.infer("chain-11", np.ones((2, COLUMNS), np.float32))
    scrape = service.scrape_idle()
    result = _top(service.metrics_url, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    (told,) = json.loads(result.stdout)
    status: dict[str, Any] = told["status"]
    assert status["state"] == "ready"
    assert status["grpc"] == service.url
    assert status["totals"]["requests"]["ok"] == scrape.value(
        "gatefuse_request_duration_seconds_count", outcome="ok", method="ModelInfer"
    )
    assert status["totals"]["rows"] == scrape.value("gatefuse_batch_rows_sum")
    assert {model["name"]: model["requests"] for model in status["models"]} == {
        model["name"]: scrape.value(
            "gatefuse_inference_duration_seconds_count", model=model["name"]
        )
        for model in MODELS
    }
    assert [worker["state"] for worker in status["workers"]] == ["ready"]


def test_top_once_beside_a_server_that_is_gone(service: Service) -> None:
    result = _top(service.metrics_url, "127.0.0.1:1", "--once")
    assert result.returncode == 69
    assert "gate-eager" in result.stdout
    assert result.stderr == "gatefuse: http://127.0.0.1:1: connection refused\n"


@needs_chromium
def test_a_model_of_backend_auto_that_comes_and_goes(service: Service, page: Page) -> None:
    page.run(
        "(() => { const find = document.getElementById('find'); find.value = 'spare';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    rows = np.ones((1, COLUMNS), np.float32)

    def shows(*expected: tuple[str, str, str]) -> None:
        wanted = json.dumps(sorted(",".join(row) for row in expected))
        page.wait_for(f"JSON.stringify({STATES}) === {json.dumps(wanted.replace(', ', ','))}")

    with closing(Control(service.url)) as control, Client(service.url) as client:
        shows(("fused", "ready", "0"))
        control.unload("spare")
        shows(("auto", "unavailable", "0"))
        control.load("spare")
        for _ in range(5):
            client.infer("spare", rows)
        shows(("fused", "ready", "5"))
        control.load("spare", {"backend": "eager"})
        for _ in range(7):
            client.infer("spare", rows)
        shows(("fused", "replaced", "5"), ("eager", "ready", "7"))
        control.unload("spare")
        shows(("fused", "replaced", "5"), ("eager", "unavailable", "7"))
        control.load("spare")
        shows(("fused", "ready", "5"), ("eager", "replaced", "7"))
    assert not page.problems
