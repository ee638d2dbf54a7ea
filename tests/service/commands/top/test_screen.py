"""The picture on a terminal of a given size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.service.status.pictures import picture

from gatefuse.commands.top.asking import Answer
from gatefuse.status.picture import Picture

pytest.importorskip("rich")

from rich.console import Console

from gatefuse.commands.top.screen import drawn


def _shown(answers: list[Answer], height: int = 24, width: int = 120) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(drawn(answers, width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def _many(count: int) -> Picture:
    model = picture().models[1]
    models = tuple(replace(model, name=f"m-{number}") for number in range(count))
    return replace(picture(), models=models)


def test_it_shows_the_service_and_its_models() -> None:
    shown = "\n".join(_shown([Answer("http://a", picture())]))
    for text in (
        "http://a",
        "ready",
        "127.0.0.1:8001",
        "ffn-eager",
        "350 W",
        "queue_full",
        "q quits",
    ):
        assert text in shown


@pytest.mark.parametrize("height", [24, 50])
def test_a_hundred_models_fit_the_terminal(height: int) -> None:
    shown = _shown([Answer("http://a", _many(100))], height)
    assert len(shown) <= height
    models = [line for line in shown if line.startswith("m-")]
    assert len(models) >= height - 12
    assert any(line == f"and {100 - len(models)} more" for line in shown)


def test_a_narrow_terminal_has_fewer_columns_and_whole_ones() -> None:
    shown = _shown([Answer("http://a", picture())], width=60)
    (titles,) = [line for line in shown if line.startswith("model")]
    assert titles.split() == ["model", "backend", "state", "req/s", "rows/s", "p50", "p99"]
    assert max(map(len, shown)) <= 60


def test_what_a_narrow_terminal_has_no_room_for_is_said() -> None:
    shown = _shown([Answer("http://a", picture())], width=80)
    (hint,) = [line for line in shown if line.startswith("all columns")]
    needed = int(hint.rpartition(" ")[2])
    assert needed > 80
    wide = _shown([Answer("http://a", picture())], width=needed)
    assert not [line for line in wide if "all columns" in line]
    assert any(line.endswith("bytes/row") for line in wide)
    assert any(
        "all columns" in line for line in _shown([Answer("http://a", picture())], width=needed - 1)
    )
    many = _shown([Answer("http://a", _many(100))], width=80)
    assert any(line.startswith("and ") and "; all columns from" in line for line in many)
    assert len(many) <= 24


def test_a_long_name_makes_room_for_figures() -> None:
    model = picture().models[0]
    names = [f"{'a' * 50}-layer-{number:05}" for number in range(2)]
    odd = replace(picture(), models=tuple(replace(model, name=name) for name in names))
    shown = _shown([Answer("http://a", odd)], width=100)
    models = [line.split()[0] for line in shown if line.startswith("aaa")]
    assert models[:2] == ["aaaaaaaaaaaa…layer-00000", "aaaaaaaaaaaa…layer-00001"]
    (titles,) = [line for line in shown if line.startswith("model")]
    assert titles.split()[5:8] == ["p50", "p99", "queued"]
    # Where there is room, names are whole.
    shown = _shown([Answer("http://a", odd)], width=200)
    assert [line.split()[0] for line in shown if line.startswith("aaa")][:2] == names


def test_several_servers_share_it() -> None:
    answers = [Answer("http://a", _many(100)), Answer("http://b", _many(100))]
    shown = _shown(answers, 50)
    assert len(shown) <= 50
    assert len([line for line in shown if line.startswith("and ")]) == 2


def test_a_server_without_an_answer_says_why() -> None:
    shown = _shown([Answer("http://a", failure="connection refused")])
    assert "connection refused" in shown


def test_text_of_a_server_is_no_markup() -> None:
    odd = replace(_many(1), models=(replace(picture().models[0], name="[red]x[/red]"),))
    assert any("[red]x[/red]" in line for line in _shown([Answer("http://a", odd)]))
