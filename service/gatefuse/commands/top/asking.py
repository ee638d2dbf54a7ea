"""Asks servers for their pictures, all at once: one that is slow or gone holds up no other."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from gatefuse.escaping import escaped
from gatefuse.status.decoding import NotAPictureError, picture_of
from gatefuse.status.picture import Picture

TIMEOUT_S = 3.0
_LARGEST_BYTES = 64 * 2**20
_LONGEST_FAILURE = 200
_DEFAULT_PORT = 8002


@dataclass(frozen=True, slots=True)
class Answer:
    """One server's: its picture and the JSON it was read from, or why there is none."""

    url: str
    picture: Picture | None = None
    text: bytes = b""
    failure: str = ""


class Servers:
    """Servers that are asked again and again."""

    def __init__(self, urls: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        """`urls` are metrics ports. Raises ValueError for what is no URL of one."""
        self._urls = [status_url(url) for url in urls]
        self._timeout_s = timeout_s
        # No proxy: the port is not for the public network, and what is in between is not wanted there.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._pool = ThreadPoolExecutor(len(urls), thread_name_prefix="ask")

    def __enter__(self) -> Self:
        """The servers."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits for nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self) -> list[Answer]:
        """Every server's answer, in order."""
        return list(self._pool.map(self._ask, self._urls))

    def _ask(self, url: str) -> Answer:
        shown = url.removesuffix("/status.json")
        try:
            with self._opener.open(url, timeout=self._timeout_s) as reply:
                text: bytes = reply.read(_LARGEST_BYTES)
            return Answer(shown, picture_of(text), text)
        except urllib.error.HTTPError as error:
            error.close()
            failure = f"it answers {error.code} {error.reason}"
        except NotAPictureError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"no answer within {self._timeout_s:g} s"
        except urllib.error.URLError as error:
            failure = _why(error.reason)
        except (OSError, HTTPException) as error:
            failure = _why(error)
        return Answer(shown, failure=escaped(failure, _LONGEST_FAILURE))


def status_url(given: str) -> str:
    """The URL of a server's status: from HOST, HOST:PORT, or any of the URLs that its port has.

    Raises:
        ValueError: it is none of them.
    """
    parts = urlsplit(given if "://" in given else f"http://{given}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{given}' is no HOST:PORT and no http URL")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"'{given}': {error}") from error
    if port is None and "://" not in given:
        port = _DEFAULT_PORT
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.removesuffix("/").removesuffix("/metrics").removesuffix("/status.json")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}/status.json"


def _why(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, socket.gaierror):
        return "no such host"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
