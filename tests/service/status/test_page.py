"""The page is one file that reaches for nothing, under a policy that says so."""

from __future__ import annotations

import base64
import hashlib
import re

from gatefuse.status.page import page

TEXT = page().body.decode()


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_its_own_style_and_script_may_run_and_nothing_else() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", TEXT, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", TEXT, re.S)
    policy = dict(part.split(" ", 1) for part in page().policy.split("; "))
    assert policy == {
        "default-src": "'none'",
        "style-src": _digest(style),
        "script-src": _digest(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_it_names_no_other_place() -> None:
    # The namespace of SVG is a name, not a place.
    assert set(re.findall(r"https?://[^'\"\s)]+", TEXT)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r'(?:src|href)="([^"#]*)"', TEXT)) - {"metrics", "status.json"} == {
        found for found in re.findall(r'href="(data:[^"]*)"', TEXT)
    }


def test_nothing_becomes_markup() -> None:
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in TEXT


def test_slots_are_filled() -> None:
    assert "/*style*/" not in TEXT
    assert "/*script*/" not in TEXT
    assert "<html lang=" in TEXT
