"""What a drawn board asks a Prometheus, and how it writes the answers."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from deploy.grafana import draw
from deploy.grafana.boards import BOARDS
from deploy.grafana.pictures.panels import label_of
from deploy.grafana.pictures.source import Source, seconds
from deploy.grafana.pictures.units import SUFFIXES, written
from deploy.grafana.prometheus_api import Prometheus, PrometheusError, Span

TARGETS = {
    "activeTargets": [
        {"labels": {"job": "gatefuse"}, "scrapeInterval": "15s"},
        {"labels": {"job": "ray"}, "scrapeInterval": "1m"},
    ]
}


class FakePrometheus:
    """Answers every range query with the same lines, and remembers what it was asked."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.refuses = ""
        self.asked: list[dict[str, str]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def _handler(fake: FakePrometheus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path)[2:4]
            if path == "/api/v1/targets":
                self._answer(200, {"data": TARGETS})
            elif fake.refuses:
                self._answer(400, {"error": fake.refuses})
            else:
                fake.asked.append({key: one for key, (one,) in parse_qs(query).items()})
                self._answer(200, {"data": {"result": fake.lines}})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Keeps the tests' output clean."""

    return Handler


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    thread = threading.Thread(target=fake.server.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    fake.server.shutdown()
    thread.join()
    fake.server.server_close()


def test_values_stand_at_their_moments(fake: FakePrometheus) -> None:
    fake.lines = [
        {"metric": {"a": "1"}, "values": [[10, "1"], [14, "3"], [16, "NaN"]]},
        {"metric": {"a": "2"}, "values": [[10, "NaN"], [12, "+Inf"]]},
    ]
    (line,) = Prometheus(fake.url).over("up", Span(10, 17, 2))
    assert line.labels == {"a": "1"}
    assert [value for value in line.values if math.isfinite(value)] == [1, 3]
    assert [math.isnan(value) for value in line.values] == [False, True, False, True]
    assert line.last == 3
    assert fake.asked == [{"query": "up", "start": "10", "end": "17", "step": "2"}]


def test_a_refusal_says_what_prometheus_said(fake: FakePrometheus) -> None:
    fake.refuses = "parse error at char 3"
    with pytest.raises(PrometheusError, match="parse error at char 3"):
        Prometheus(fake.url).over("up{", Span(0, 1, 1))


def test_the_window_is_grafanas(fake: FakePrometheus) -> None:
    """Four scrapes of the service's own job, or a step and a scrape where that is more."""
    panel = BOARDS["service"].panels[2]
    for minutes, window in ((10, "[60s]"), (240, "[135s]")):
        fake.asked.clear()
        Source(Prometheus(fake.url), 0, 60 * minutes).answers(BOARDS["service"], panel, {})
        assert window in fake.asked[0]["query"]


def test_a_mark_is_where_a_line_begins(fake: FakePrometheus) -> None:
    fake.lines = [{"metric": {}, "values": [[0, "1"], [1, "1"], [3, "1"]]}]
    marks = Source(Prometheus(fake.url), 0, 4).marks(BOARDS["service"])
    assert marks == [(0, "orange"), (3, "orange"), (0, "blue"), (3, "blue")]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_board_without_any_data_is_drawn(fake: FakePrometheus, name: str, tmp_path: Path) -> None:
    words = [name, "--prometheus", fake.url, "--output", str(tmp_path), "--minutes", "1"]
    assert draw.main([*words, "--set", "bandwidth=5"]) == 0
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not any("$" in asked["query"] for asked in fake.asked)


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["worker", "--prometheus", "http://127.0.0.1:1", "--output", str(tmp_path)]
    assert draw.main(words) == 69
    assert "refused" in capsys.readouterr().err


def test_a_file_in_the_way(fake: FakePrometheus, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["worker", "--prometheus", fake.url, "--output", str(tmp_path / "file")]
    assert draw.main(words) == 73


@pytest.mark.parametrize("choice", ["bandwidth", "model=x"])
def test_a_choice_that_the_board_has_not(choice: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        draw.main(["worker", "--prometheus", "http://x", "--output", ".", "--set", choice])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.999, "percentunit", "99.9 %"),
        (0, "s", "0 s"),
        (0.00125, "s", "1.25 ms"),
        (12, "s", "12 s"),
        (2.5e9, "Bps", "2.5 GB/s"),
        (512, "bytes", "512 B"),
        (3e12, "flops", "3 TFLOP/s"),
        (12, "reqps", "12 req/s"),
        (25_000, "rowsps", "25 krows/s"),
        (3, "short", "3"),
        (1.5e6, "short", "1.5 M"),
    ],
)
def test_numbers_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


def test_every_unit_of_the_boards_can_be_written() -> None:
    used = {panel.unit for board in BOARDS.values() for panel in board.panels}
    assert used <= {*SUFFIXES, "percentunit"}


@pytest.mark.parametrize(
    ("text", "value"), [("1s", 1), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


def test_lines_are_named_by_their_labels() -> None:
    assert label_of("{{a}} and {{b}}", {"a": "x", "b": "y"}) == "x and y"
    assert label_of("p99", {}) == "p99"
    assert label_of("", {"b": "y", "a": "x"}) == "a=x, b=y"
