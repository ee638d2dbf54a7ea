"""Settings that clients make: checked, kept for processes that start later, and followed."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from gatefuse.logs import log_as
from gatefuse.run_folder.settings import (
    LogSettings,
    Settings,
    SettingsError,
    TraceSettings,
    read_settings,
    write_settings,
)


@pytest.fixture(autouse=True)
def _same_logging_afterwards() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _logged(settings: LogSettings, role: str = "") -> list[str]:
    with redirect_stderr(io.StringIO()) as stderr:
        log_as(settings, role)
        log = logging.getLogger("gatefuse.test")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            log.log(level, "at %s", logging.getLevelName(level))
    return stderr.getvalue().splitlines()


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, ["INFO", "WARNING", "ERROR"]),
        ({"log_info": False}, ["WARNING", "ERROR"]),
        ({"log_warning": False}, ["INFO", "ERROR"]),
        ({"log_error": False}, ["INFO", "WARNING"]),
        ({"log_verbose_level": 1}, ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ({"log_info": False, "log_verbose_level": 2}, ["DEBUG", "WARNING", "ERROR"]),
    ],
)
def test_levels_are_written_or_not(changes: dict[str, Any], levels: list[str]) -> None:
    lines = _logged(Settings().with_log(changes).log, "worker")
    assert [line.split()[-1] for line in lines] == levels
    assert all(" worker " in line for line in lines)


def test_times_in_iso_8601() -> None:
    default, iso = (_logged(LogSettings(log_format=each))[0] for each in ("default", "ISO8601"))
    assert default[10] == " "
    assert iso[10] == "T"


@pytest.mark.parametrize(
    "changes",
    [
        {"log_info": 1},
        {"log_info": "true"},
        {"log_verbose_level": -1},
        {"log_verbose_level": True},
        {"log_format": "xml"},
        {"log_colour": "red"},
    ],
)
def test_log_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(SettingsError, match=f"^{key}: "):
        Settings().with_log(changes)


def test_traces_of_all_and_of_one_model() -> None:
    settings = Settings().with_trace("", {"trace_level": ["TIMESTAMPS"], "trace_rate": ["7"]})
    assert settings.trace_of("ffn") == TraceSettings(trace_level="TIMESTAMPS", trace_rate=7)
    settings = settings.with_trace("ffn", {"trace_rate": ["1"], "trace_count": ["3"]})
    own = TraceSettings(trace_level="TIMESTAMPS", trace_rate=1, trace_count=3)
    assert settings.trace_of("ffn") == own
    assert settings.trace_of("other") == settings.trace
    # What a model does not say of itself follows the rest; what it says no more does so again.
    settings = settings.with_trace("", {"trace_level": ["OFF"]}).with_trace(
        "ffn", {"trace_rate": []}
    )
    assert settings.trace_of("ffn") == TraceSettings(trace_rate=7, trace_count=3)
    assert settings.with_trace("", {"trace_rate": []}).trace == TraceSettings()


@pytest.mark.parametrize("model", ["", "ffn"])
@pytest.mark.parametrize(
    "changes",
    [
        {"trace_level": ["TENSORS"]},
        {"trace_rate": ["0"]},
        {"trace_rate": ["often"]},
        {"trace_rate": ["1", "2"]},
        {"trace_count": ["-2"]},
        {"log_frequency": ["-1"]},
        {"trace_colour": ["red"]},
    ],
)
def test_trace_settings_that_cannot_be(model: str, changes: dict[str, list[str]]) -> None:
    with pytest.raises(SettingsError, match=next(iter(changes))):
        Settings().with_trace(model, changes)


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == Settings()
    settings = Settings().with_log({"log_info": False}).with_trace("ffn", {"trace_rate": ["3"]})
    write_settings(tmp_path, settings)
    assert read_settings(tmp_path) == settings
