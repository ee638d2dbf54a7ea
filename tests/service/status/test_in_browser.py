"""The page in a browser, before a service whose figures are known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.browser import Page, browsing, needs_chromium
from tests.service.status.pictures import AFTER, BEFORE, FACTS

from gatefuse.metrics import http_server
from gatefuse.metrics.endpoint import Endpoint
from gatefuse.status.facts import Facts, ModelFacts
from gatefuse.status.monitor import Monitor
from gatefuse.status.picture import FORMAT
from gatefuse.status.samples import Sample

pytestmark = [needs_chromium, pytest.mark.slow]

STEP_S = 0.2
EVIL = '<img src="x" onerror="throw 1">'
# Texts of the cells of a table, row by row.
ROWS = """
[...document.querySelectorAll('#{table} tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))
"""
# Of every element with text of its own: how far its colour stands out from what is behind it.
LOW_CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = parts(colour).map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return parts(colour)[3] === 0 && node.parentElement ? behind(node.parentElement) : colour;
  };
  const own = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  const seen = (node) => own(node) && node.checkVisibility() && !node.closest('svg, script');
  return [...document.body.querySelectorAll('*')].filter(seen).map((node) => {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.slice(0, 30)];
  }).filter(([ratio]) => ratio < 4.5);
})()
"""


class Service:
    """A metrics port that tells what a test says; each sample is the next of `texts`, the last again and again."""

    def __init__(self) -> None:
        self.texts = [BEFORE, AFTER]
        self.facts: Facts = FACTS
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Listens, on the port that it had."""
        self.monitor = Monitor(self._samples, STEP_S)
        self.monitor.facts = lambda: self.facts
        endpoint = Endpoint(CollectorRegistry(), self.monitor)
        self._server, _ = http_server.start("127.0.0.1", self.port, endpoint)
        self.port = self._server.server_port

    def stop(self) -> None:
        """Nobody listens."""
        self.monitor.stop()
        self._server.shutdown()
        self._server.server_close()

    def _samples(self) -> list[Sample]:
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return [
            Sample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browsing() as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    browser.look()
    browser.problems.clear()
    yield browser
    browser.open("about:blank")


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


def _open(page: Page, service: Service) -> None:
    page.open(service.url)
    page.wait_for("document.querySelectorAll('#reasons-table tbody tr').length")


def _text(page: Page, selector: str) -> str:
    text: str = page.run(f"document.querySelector({selector!r}).textContent")
    return text


def test_it_shows_the_figures(page: Page, service: Service) -> None:
    _open(page, service)
    page.wait_for("document.getElementById('window').textContent !== 'few'")
    assert _text(page, "#state") == "ready"
    assert "gRPC 127.0.0.1:8001 · version 1.2.3 · up" in _text(page, "#facts")
    tiles = page.run(
        "[...document.querySelectorAll('.tile')].map((tile) => [...tile.children].map((part) => part.textContent))"
    )
    shown = {tile[0]: tile[1:3] for tile in tiles}
    assert shown["requests/s"][1] == "140 answered"
    assert shown["not answered/s"][1] == "10 in all, 10 shed"
    assert shown["rows queued"] == ["5", "requests in flight: 3"]
    models = {row[0]: row for row in page.run(ROWS.format(table="models-table"))}
    ffn = models["ffnswiglu bf16 8×16"]
    assert (ffn[1:3], ffn[8], ffn[-1]) == (["fused", "ready"], "5", "140")
    assert page.run(ROWS.format(table="workers-table")) == [
        ["0", "ready", "cuda", "2", "0"],
        ["1", "ready", "cuda", "2", "2"],
    ]
    (device,) = page.run(ROWS.format(table="devices-table"))
    assert device[2:] == ["50.0 %", "4.00 GB of 8.00 GB", "351 W", "61.0 °C", "power", "2"]
    processes = page.run(ROWS.format(table="processes-table"))
    assert processes[0][:2] + processes[0][3:5] == ["driver", "41", "100 MB", "42"]
    assert processes[1][:2] == ["frontend-0", "–"]
    assert page.run(ROWS.format(table="reasons-table"))[0][:3] == ["shed", "queue_full", "10"]
    assert not page.problems


def test_names_are_shown_as_they_are(page: Page, service: Service) -> None:
    evil = replace(FACTS.models[0], name=EVIL, kind=EVIL, reason=EVIL, state="LOADING")
    service.facts = replace(FACTS, models=(evil,), grpc=EVIL)
    quoted = EVIL.replace('"', '\\"')
    service.texts = [AFTER.replace('"queue_full"', f'"{quoted}"')]
    _open(page, service)
    assert EVIL in _text(page, "#models-table tbody th")
    assert EVIL in _text(page, "#facts")
    assert EVIL in _text(page, "#reasons-table tbody")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert not page.problems


def _hundred() -> tuple[Facts, str]:
    models = tuple(
        ModelFacts(f"m-{number:03}", "elementwise", "eager", "bf16", number, (0,))
        for number in range(100)
    )
    text = "".join(
        f'gatefuse_model_info{{model="{model.name}",backend="eager",dtype="bf16",hidden="0",intermediate="0"}} 1\n'
        f'gatefuse_inference_duration_seconds_count{{model="{model.name}",backend="eager"}} {number}\n'
        for number, model in enumerate(models)
    )
    return replace(FACTS, models=models), text + 'gatefuse_batches_total{trigger="idle"} 1\n'


def _names(page: Page) -> list[str]:
    return [row[0][:5] for row in page.run(ROWS.format(table="models-table"))]


def test_a_hundred_models_are_searched_ordered_and_folded(page: Page, service: Service) -> None:
    service.facts, text = _hundred()
    service.texts = [text]
    _open(page, service)
    assert len(_names(page)) == 20
    assert _text(page, "#models-count") == "100"
    page.run("document.getElementById('more').click()")
    assert len(_names(page)) == 100
    # By requests that were answered: the most first, then the fewest.
    last = "document.querySelector('#models-table thead th:last-child button').click()"
    page.run(last)
    assert _names(page)[:2] == ["m-099", "m-098"]
    page.run(last)
    assert _names(page)[:2] == ["m-000", "m-001"]
    assert page.run("document.querySelectorAll('th[aria-sort=ascending]').length") == 1
    page.run(
        "(() => { const find = document.getElementById('find'); find.value = 'EAGER 07';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    assert _names(page) == ["m-007", *(f"m-{number:03}" for number in range(70, 80))]
    assert _text(page, "#models-count") == "11 of 100"
    page.run("document.querySelector('#models summary').click()")
    assert not page.run("document.getElementById('models').open")
    assert not page.problems


def test_it_says_when_the_service_is_silent_and_when_it_is_back(
    page: Page, service: Service
) -> None:
    _open(page, service)
    service.stop()
    page.wait_for("!document.getElementById('alert').hidden")
    assert "No answer from the service since" in _text(page, "#alert")
    # Nothing looks as if it were now's; nor does it after the reader touched the tables.
    page.run("document.getElementById('find').dispatchEvent(new Event('input'))")
    assert page.run("document.title") == "Gatefuse: no answer"
    assert page.run("document.getElementById('state').className") == "pill"
    assert _text(page, "#state") == "no answer"
    assert page.run("document.querySelectorAll('.stale').length") == 2
    service.facts = replace(FACTS, draining=True)
    service.start()
    page.wait_for("document.getElementById('alert').hidden")
    page.wait_for("document.getElementById('state').textContent === 'draining'")
    assert page.run("document.getElementById('state').className") == "pill is-draining"
    assert page.run("document.querySelectorAll('.stale').length") == 0


def test_it_says_when_the_service_is_newer_than_the_page(
    page: Page, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _open(page, service)
    monkeypatch.setattr("gatefuse.status.drawing.FORMAT", FORMAT + 1)
    page.wait_for("!document.getElementById('alert').hidden")
    assert _text(page, "#alert") == "The service was updated: load this page again."
    assert _text(page, "#state") == "updated"


def test_it_asks_no_more_while_nobody_sees_it(page: Page, service: Service) -> None:
    _open(page, service)
    asked = "performance.getEntriesByName(new URL('status.json', location).href).length"
    page.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    time.sleep(1.5)
    before = page.run(asked)
    time.sleep(2.5)
    assert page.run(asked) == before
    page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for(f"{asked} > {before}")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_it_can_be_read(page: Page, service: Service, width: int, dark: bool) -> None:
    page.look(width, dark=dark)
    _open(page, service)
    # As wide as captions get.
    page.run(
        "document.querySelectorAll('.tile .scale span:last-child')"
        ".forEach((each) => { each.textContent = 'highest 9,999 ms'; })"
    )
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(LOW_CONTRAST) == []
    assert page.run("document.documentElement.lang") == "en"
    assert "Gatefuse: ready" in page.run("document.title")
    unnamed = "[...document.querySelectorAll('table, svg[role=img]')].filter((each) => !each.ariaLabel).length"
    assert page.run(unnamed) == 0
    assert page.run("document.querySelectorAll('thead th:not([scope=col])').length") == 0
    assert not page.problems


@pytest.mark.parametrize(("width", "rows"), [(1400, 1), (1240, 2), (1024, 2), (721, 2), (720, 3)])
def test_tiles_fill_their_rows(page: Page, service: Service, width: int, rows: int) -> None:
    page.look(width)
    _open(page, service)
    tops = page.run(
        "[...document.querySelectorAll('.tile')].map((tile) => tile.getBoundingClientRect().top)"
    )
    assert sorted(map(tops.count, set(tops))) == [len(tops) // rows] * rows
