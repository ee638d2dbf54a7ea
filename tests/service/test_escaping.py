"""What strangers wrote is shown as text, and no longer than there is room for."""

from __future__ import annotations

import pytest

from gatefuse.escaping import escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama-ffn", "llama-ffn"),
        ("größe 模型", "größe 模型"),
        ("\x1b]0;PWNED\x07", r"\x1b]0;PWNED\x07"),
        ("a\nb\r\tc\x00", r"a\nb\r\tc\x00"),
        ("\x9b31m\u202e", r"\x9b31m\u202e"),
        ("it's", "it's"),
        ("", ""),
    ],
)
def test_what_cannot_be_printed_is_an_escape(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("abcd", "abcd"), ("abcde", "abc…"), ("ab\x1b", r"ab\…"), ("a" * 10**6, "aaa…")],
)
def test_it_is_cut_after_it_was_escaped(text: str, shown: str) -> None:
    assert escaped(text, 4) == shown
