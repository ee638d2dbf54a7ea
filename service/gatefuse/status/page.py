"""The page: one file of HTML that needs nothing else, put together from the assets beside this module."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_SCRIPTS = ("format.js", "draw.js", "tables.js", "columns.js", "page.js")
_STYLE_SLOT = "/*style*/"
_SCRIPT_SLOT = "/*script*/"


class Page(NamedTuple):
    """The page and the policy that it is served under: its own style and script run, and no other."""

    body: bytes
    policy: str


@cache
def page() -> Page:
    """The page, the same for everybody: what it shows it asks for."""
    style = _asset("page.css")
    # Nothing of a script is seen by the page around it.
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "})();\n"
    body = _asset("page.html").replace(_STYLE_SLOT, style).replace(_SCRIPT_SLOT, script)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Page(body.encode(), policy)


def _asset(name: str) -> str:
    return files("gatefuse.status").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
