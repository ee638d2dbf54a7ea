"""The picture in cells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.service.status.pictures import AFTER, FACTS, STARTED_UNIX_S, picture, samples

from gatefuse.commands.top import tables
from gatefuse.commands.top.asking import Answer
from gatefuse.commands.top.plain import text
from gatefuse.status.drawing import draw


def test_the_headline() -> None:
    assert tables.headline(picture()) == "ready  gRPC 127.0.0.1:8001  version 1.2.3  up 0:01:40"


@pytest.mark.parametrize(
    ("up_s", "shown"), [(0.5, "0:00:00"), (3725.0, "1:02:05"), (200_000.0, "2 d 7 h")]
)
def test_how_long_it_is_up(up_s: float, shown: str) -> None:
    assert tables.headline(replace(picture(), up_s=up_s)).endswith(f"up {shown}")


def test_the_totals() -> None:
    assert dict(tables.totals(picture())) == {
        "req/s": "10.0",
        "rows/s": "40.0",
        "p50": "1.00 ms",
        "p99": "1.98 ms",
        "failed/s": "2.50",
        "failed": "10 of 150",
        "queued": "5",
        "in flight": "3",
        "busy": "25.0 %",
    }


def test_models_the_busiest_first_and_no_more_than_there_is_room_for() -> None:
    sheet = tables.models(picture(), most=2)
    assert (len(sheet.rows), sheet.left_out) == (2, 1)
    assert dict(zip(sheet.titles, sheet.rows[0], strict=True)) == {
        "model": "ffn",
        "backend": "fused",
        "state": "ready",
        "req/s": "10.0",
        "rows/s": "40.0",
        "p50": "1.00 ms",
        "p99": "1.98 ms",
        "queued": "5",
        "rows/batch": "8.00",
        "padding": "20.0 %",
        "launches/row": "0.25",
        "bytes/row": "10.0 B",
    }
    assert sheet.rows[1][3:] == ("0.00", "0.00", "-", "-", "0", "-", "-", "-", "-")


def test_before_there_are_two_moments() -> None:
    drawn = draw(FACTS, samples(AFTER), None, STARTED_UNIX_S, 100.0)
    assert tables.models(drawn).rows[0][3:] == ("-", "-", "-", "-", "5", "-", "-", "-", "-")
    assert dict(tables.totals(drawn))["req/s"] == "-"


def test_only_groups_of_several_models_with_rows_are_compared() -> None:
    assert tables.side_by_side(picture()).rows == ()
    eager = "".join(
        line.replace('model="ffn",backend="fused"', 'model="ffn-eager",backend="eager"') + "\n"
        for line in AFTER.splitlines()
        if 'model="ffn",backend="fused"' in line and "info" not in line
    )
    drawn = draw(FACTS, samples(AFTER + eager), None, STARTED_UNIX_S, 100.0)
    sheet = tables.side_by_side(drawn)
    assert [row[:2] for row in sheet.rows] == [("ffn", "fused"), ("ffn-eager", "eager")]
    assert sheet.rows[0][2:] == ("4.67", "0.0714", "2.86 B", "21.4 ms", "583 µs")
    assert tables.side_by_side(drawn, most=0).left_out == 2


def test_what_else_there_is_to_know() -> None:
    drawn = picture()
    assert tables.workers(drawn) == "workers: 2 ready on cuda; 2 restarts"
    assert tables.troubles(drawn) == "shed queue_full 10"
    assert tables.devices(drawn) == (
        "cuda:0: 50.0 % used, 4.00 GB of 8.00 GB, 350 W, 61.0 °C, throttled: power",
    )


def test_plain_text_has_all_of_it() -> None:
    shown = text([Answer("http://a", picture()), Answer("http://b", failure="connection refused")])
    first, last = shown.split("\n")[0], shown.split("\n")[-1]
    assert first == "http://a  ready  gRPC 127.0.0.1:8001  version 1.2.3  up 0:01:40"
    assert last == "http://b  connection refused"
    assert "ffn-eager  eager    ready" in shown
