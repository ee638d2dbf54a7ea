"""Drives Debian's headless Chromium over the DevTools protocol, on a pair of pipes: no port, no other package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: make browser installs it"
)
# Chromium reads commands from descriptor 3 and writes to 4: the shell moves ours there.
_ON_PIPES = 'exec "$0" "$@" 3<&{read} 4>&{write}'
_PATIENCE_S = 60.0
_CHUNK_BYTES = 2**16


class BrowserError(AssertionError):
    """The page or the browser failed."""


class Page:
    """One open page; `problems` are what it wrote to its console as warnings or errors, and what it threw."""

    def __init__(self, commands: int, answers: int) -> None:
        """`commands` and `answers` are descriptors of pipes."""
        self.problems: list[str] = []
        self._commands = commands
        self._answers = answers
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def look(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Sets the size of the window, in CSS pixels, and whether its user likes it dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._ask("Emulation.setDeviceMetricsOverride", **metrics)
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Loads a page."""
        failure = self._ask("Page.navigate", url=url).get("errorText")
        if failure:
            raise BrowserError(f"{url}: {failure}")

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        answer = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = _PATIENCE_S) -> Any:
        """The first truthy value of an expression."""
        deadline_s = monotonic() + timeout_s
        while not (value := self.run(expression)):
            if monotonic() > deadline_s:
                raise BrowserError(f"not within {timeout_s} s: {expression}; {self.problems}")
            self.run("new Promise((done) => setTimeout(done, 50))")
        return value

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Writes a PNG, of the whole page or of what the window shows."""
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _next(self) -> Mapping[str, Any]:
        while b"\0" not in self._buffer:
            if not select([self._answers], [], [], _PATIENCE_S)[0]:
                raise BrowserError("the browser says nothing")
            chunk = os.read(self._answers, _CHUNK_BYTES)
            if not chunk:
                raise BrowserError("the browser ended")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: Mapping[str, Any] = json.loads(text)
        return message

    def _note(self, message: Mapping[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.problems.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


@contextmanager
def browsing() -> Iterator[Page]:
    """A page of a browser of its own, with a profile that is thrown away."""
    assert CHROMIUM is not None
    their_commands, commands = os.pipe()
    answers, their_answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            "bash",
            "-c",
            _ON_PIPES.format(read=their_commands, write=their_answers),
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",  # a test may be root, as in a container
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        process = subprocess.Popen(
            command,
            pass_fds=(their_commands, their_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_commands)
        os.close(their_answers)
        try:
            yield Page(commands, answers)
        finally:
            os.close(commands)  # the browser ends with its pipe
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
