"""Lines of JSON, and how they get from one process to another's stderr."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gatefuse.logs import FIELDS, log_as
from gatefuse.run_folder.log_relay import MAX_LINE_BYTES, LogRelay
from gatefuse.run_folder.settings import LogSettings

JSON = LogSettings(log_format="json")


@pytest.fixture(autouse=True)
def _same_logging_afterwards() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    log_as(LogSettings())
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_says_when_who_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    log_as(JSON, "worker-0")
    logging.getLogger("gatefuse.test").warning("%d rows\nof two lines", 3, extra={FIELDS: {"a": 1}})
    (line,) = _lines(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line.pop("pid") > 0
    assert line == {
        "level": "WARNING",
        "process": "worker-0",
        "logger": "gatefuse.test",
        "message": "3 rows\nof two lines",
        "a": 1,
    }


def test_exceptions_and_warnings_of_libraries_are_lines_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_as(JSON)
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("library").exception("failed")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # what catch_warnings put aside is what is to be replaced
        log_as(JSON)
        warnings.warn("old", stacklevel=1)
        logging.captureWarnings(False)
    failed, old = _lines(capsys)
    assert failed["process"] == "driver"
    assert failed["exception"].endswith("ValueError: wrong")
    assert (old["logger"], old["level"]) == ("py.warnings", "WARNING")


def test_text_has_the_fields_behind_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    log_as(LogSettings(), "frontend")
    logging.getLogger("gatefuse.test").info("request", extra={FIELDS: {"code": "OK", "rows": 2}})
    logging.getLogger("gatefuse.test").info("plain")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" frontend INFO request code=OK rows=2")
    assert second.endswith(" frontend INFO plain")


def test_a_field_is_one_field_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    log_as(LogSettings())
    fields = {"model": 'a code=OK "b"', "rows": 2, "trace": "x"}
    logging.getLogger("gatefuse.test").info("request", extra={FIELDS: fields})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r' INFO request model="a code=OK \"b\"" rows=2 trace=x')


def test_lines_of_another_process_come_whole_and_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(LogRelay(tmp_path)):
        log_as(JSON, "worker-0", tmp_path)
        for number in range(100):
            logging.getLogger("gatefuse.test").info("%d", number)
        log_as(LogSettings())  # closes this end, as the end of a process would
    assert [line["message"] for line in _lines(capsys)] == [str(n) for n in range(100)]


@pytest.mark.parametrize("message", ["lost", "x" * MAX_LINE_BYTES])
def test_a_line_that_cannot_be_sent_is_written_here(
    message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_as(JSON, "worker-0", tmp_path)  # nobody listens there
    logging.getLogger("gatefuse.test").info(message)
    assert [line["message"] for line in _lines(capsys)] == [message]
