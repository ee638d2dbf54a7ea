"""The addresses that a client is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# What gRPC itself resolves; anything else before a colon is a host.
_GRPC_SCHEMES = ("dns", "unix", "unix-abstract", "ipv4", "ipv6", "vsock", "xds", "google-c2p")
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:/\s\[\]]+):[0-9]{1,5}")


def targets(url: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the endpoints of one target or several.

    Raises TypeError for what is no text, ValueError for none or for one without a port or with a scheme of the web.
    """
    found: Any = (url,) if isinstance(url, str) else url
    if not (isinstance(found, Sequence) and all(isinstance(each, str) for each in found)):
        raise TypeError(f"url must be HOST:PORT, or a list of several, not {url!r}")
    if not found:
        raise ValueError("no endpoint: pass HOST:PORT, or several")
    for target in found:
        _check(target)
    return tuple(found)


def _check(target: str) -> None:
    scheme, colon, rest = target.partition(":")
    if colon and scheme in _GRPC_SCHEMES and not rest.isdigit():
        return
    if "://" in target:
        raise ValueError(f"{target!r} has a scheme: pass HOST:PORT, without '{scheme}://'")
    if _HOST_AND_PORT.fullmatch(target) is None:
        raise ValueError(f"{target!r} is not HOST:PORT, such as localhost:8001 or [::1]:8001")
