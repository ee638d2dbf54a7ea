"""How a process of the service logs: lines of text, or of JSON with the same content."""

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

from gatefuse.run_folder.log_relay import RelayHandler
from gatefuse.run_folder.settings import LogSettings

ISO_8601 = "%Y-%m-%dT%H:%M:%S%z"

FIELDS = "fields"
"""The attribute of a record that holds what belongs to its message, by name: `extra={FIELDS: {...}}`."""


_AMBIGUOUS = re.compile(r'[\s"=]')


class _Chosen(logging.Filter):
    """Lets through the levels that the settings name."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a record to be written."""
        if record.levelno >= logging.ERROR:
            return self._settings.log_error
        if record.levelno >= logging.WARNING:
            return self._settings.log_warning
        if record.levelno >= logging.INFO:
            return self._settings.log_info
        return self._settings.log_verbose_level > 0


class _TextFormatter(logging.Formatter):
    """The message, and behind it its fields as `name=value`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        fields: dict[str, Any] = getattr(record, FIELDS, {})
        return " ".join(
            [
                super().formatMessage(record),
                *(f"{key}={_in_line(value)}" for key, value in fields.items()),
            ]
        )


def _in_line(value: Any) -> str:
    """A field's value; in quotes where it could be taken for several."""
    text = str(value)
    return json.dumps(text) if isinstance(value, str) and _AMBIGUOUS.search(text) else text


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process, logger, message, its fields, and an exception's text."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        seconds, milliseconds = time.gmtime(record.created), int(record.msecs)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{milliseconds:03d}Z",
            "level": record.levelname,
            "process": self._role,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as(settings: LogSettings, role: str = "", folder: Path | None = None) -> None:
    """Logs to stderr from now on; `role` tells the process in each line.

    With `folder`, the run folder, lines of JSON go to the driver's stderr instead, which a process of Ray's has not.
    """
    is_json = settings.log_format == "json"
    handler = RelayHandler(folder) if is_json and folder is not None else logging.StreamHandler()
    handler.setFormatter(_formatter(settings, role))
    handler.addFilter(_Chosen(settings))
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, RelayHandler):
            old.close()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if settings.log_verbose_level else logging.INFO)
    logging.captureWarnings(is_json)


def _formatter(settings: LogSettings, role: str) -> logging.Formatter:
    if settings.log_format == "json":
        return _JsonFormatter(role or "driver")
    date_format = ISO_8601 if settings.log_format == "ISO8601" else None
    who = f"{role} " if role else ""
    return _TextFormatter(f"%(asctime)s {who}%(levelname)s %(message)s", date_format)
