"""A picture survives its way through JSON; what is none is refused in words."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.service.status.pictures import AFTER, change, picture, samples

from gatefuse.status.decoding import NotAPictureError, picture_of
from gatefuse.status.drawing import point


def _told() -> dict[str, Any]:
    return asdict(picture())


def test_what_was_told_is_read() -> None:
    drawn = replace(picture(), history=(point(change(), samples(AFTER)),))
    assert picture_of(json.dumps(asdict(drawn)).encode()) == drawn


def test_a_newer_server_may_tell_more() -> None:
    told = _told()
    told["weather"] = "fine"
    told["models"][0]["colour"] = "red"
    assert picture_of(json.dumps(told).encode()) == picture()


def test_an_older_server_may_tell_less() -> None:
    told = _told()
    del told["processes"][0]["pid"]
    assert picture_of(json.dumps(told).encode()).processes[0].pid is None
    del told["processes"][0]["process"]
    with pytest.raises(NotAPictureError, match="cannot be read"):
        picture_of(json.dumps(told).encode())


def test_texts_are_fit_for_a_terminal() -> None:
    told = _told()
    for place in (told["models"][0], told["models"][1]):
        place["name"] = place["reason"] = "\x1b]0;PWNED\x07\n"
    told["state"] = told["grpc"] = "\x1b[31m"
    told["totals"]["requests"] = {"\x1b": 1}
    drawn = picture_of(json.dumps(told).encode())
    assert drawn.models[0].name == drawn.models[1].reason == r"\x1b]0;PWNED\x07\n"
    assert (drawn.state, drawn.grpc) == (r"\x1b[31m", r"\x1b[31m")
    assert drawn.totals.requests == {r"\x1b": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"<!doctype html>", "does not answer with JSON"),
        (b"\xff\xfe", "does not answer with JSON"),
        (b"[" * 100_000, "does not answer with JSON"),
        (b"[]", "not the status of a Gatefuse"),
        (b"{}", "not the status of a Gatefuse"),
        (b'{"format": 99}', "has format 99, this command reads 1"),
        (b'{"format": 1}', "cannot be read"),
        (b'{"format": 1, "state": 1, "models": 3}', "cannot be read"),
    ],
)
def test_what_is_no_picture(text: bytes, why: str) -> None:
    with pytest.raises(NotAPictureError, match=why):
        picture_of(text)


@pytest.mark.parametrize("value", [None, "many", [], {}])
def test_a_field_of_another_type(value: object) -> None:
    told = _told()
    told["models"][0]["rows"] = value
    with pytest.raises(NotAPictureError, match="cannot be read"):
        picture_of(json.dumps(told).encode())
