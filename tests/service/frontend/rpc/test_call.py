"""What a call that failed tells its client."""

from __future__ import annotations

import urllib.parse

import grpc

from gatefuse.errors import InvalidRequest
from gatefuse.frontend.rpc.call import refusal

HEADER_LIMIT_BYTES = 8192


def test_a_text_fits_into_its_header_whatever_was_sent() -> None:
    status, text, outcome = refusal(InvalidRequest("shape", "🦜" * 9000), "ModelInfer")
    assert (status, outcome) == (grpc.StatusCode.INVALID_ARGUMENT, "client")
    assert len(urllib.parse.quote(text)) < HEADER_LIMIT_BYTES * 3 / 4
    assert text.endswith("…")


def test_a_text_of_the_usual_length_stays_as_it_is() -> None:
    text = "the shape of the input must be [rows, columns]"
    assert refusal(InvalidRequest("shape", text), "ModelInfer")[1] == text
