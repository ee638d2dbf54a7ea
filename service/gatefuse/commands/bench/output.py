"""Where a run writes what it found, also if it ends early."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import Any


def say(what: str) -> None:
    """A line about the run; its result alone goes to standard output."""
    print(f"gatefuse bench: {what}", file=sys.stderr, flush=True)


class CannotWriteError(RuntimeError):
    """FILE cannot be written; the text says why."""


class Output:
    """FILE, and FILE.partial until all is measured."""

    def __init__(self, path: Path) -> None:
        """Find out before hours of measuring whether both can be written; leave both as they are.

        Raises:
            CannotWriteError: they cannot.
        """
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        with self._writing():
            if path.is_dir():
                raise IsADirectoryError(EISDIR, strerror(EISDIR), str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self._partial.exists()
            self._partial.open("a", encoding="utf-8").close()
            if is_new:
                self._partial.unlink()

    def keep(self, found: dict[str, Any]) -> None:
        """Write what there is so far; if that fails, say so and let the run go on."""
        try:
            self._write(found)
        except CannotWriteError as error:
            say(str(error))

    def finish(self, found: dict[str, Any]) -> None:
        """Write all there is.

        Raises:
            CannotWriteError: it cannot be written.
        """
        self._write(found)
        with self._writing():
            self._partial.replace(self._path)

    def _write(self, found: dict[str, Any]) -> None:
        with self._writing():
            given = json.dumps(found, indent=1) + "\n"
            self._partial.write_text(given, encoding="utf-8")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A full disk has no name.
            where = f": {error.filename}" if error.filename else ""
            why = f"{error.strerror}{where}"
            raise CannotWriteError(f"cannot write {self._path}: {why}") from error
