"""How a process of the service logs."""

import logging

from gatefuse.settings import LogSettings

ISO_8601 = "%Y-%m-%dT%H:%M:%S%z"


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


def log_as(settings: LogSettings, role: str = "") -> None:
    """Logs to stderr from now on; `role` tells the process in each line."""
    handler = logging.StreamHandler()
    date_format = ISO_8601 if settings.log_format == "ISO8601" else None
    who = f"{role} " if role else ""
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {who}%(levelname)s %(message)s", date_format)
    )
    handler.addFilter(_Chosen(settings))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if settings.log_verbose_level else logging.INFO)
