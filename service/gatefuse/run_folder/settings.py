"""What clients may set of a running service: how its processes log, and what they trace."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, ValidationError

from gatefuse.config import Strict
from gatefuse.config.errors import readable

FILE_NAME = "settings.json"


class SettingsError(ValueError):
    """A setting that there is not, or a value that it cannot have; the text is for the client."""


class LogSettings(Strict):
    """Which records are written, and how their times look; a verbose level above 0 adds what is for debugging."""

    log_info: StrictBool = True
    log_warning: StrictBool = True
    log_error: StrictBool = True
    log_verbose_level: Annotated[StrictInt, Field(ge=0)] = 0
    log_format: Literal["default", "ISO8601", "json"] = "default"


class TraceSettings(Strict):
    """Every `trace_rate`-th answered request is traced, `trace_count` of them in all (-1: no end).

    Traces are written when `log_frequency` of them have come together; 0: ten times a second.
    """

    trace_level: Literal["OFF", "TIMESTAMPS"] = "OFF"
    trace_rate: Annotated[int, Field(ge=1)] = 1000
    trace_count: Annotated[int, Field(ge=-1)] = -1
    log_frequency: Annotated[int, Field(ge=0, le=10_000)] = 0


class Settings(Strict):
    """All of them; `model_traces` has what is different for a model."""

    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()
    model_traces: dict[str, dict[str, str]] = Field(default={})

    def with_log(self, changes: Mapping[str, Any]) -> "Settings":
        """The same with other log settings. Raises SettingsError."""
        return self.model_copy(update={"log": _checked(LogSettings, {**dict(self.log), **changes})})

    def with_trace(self, model: str, changes: Mapping[str, Sequence[str]]) -> "Settings":
        """The same with other trace settings, of all models or of one; a setting without values goes back.

        Raises:
            SettingsError: there is no such setting, or it cannot have that value.
        """
        own = dict(self.model_traces.get(model, {})) if model else _plain(self.trace)
        for key, values in changes.items():
            own.pop(key, None)
            if len(values) > 1:
                raise SettingsError(f"{key} has {len(values)} values: give one")
            if values:
                own[key] = values[0]
        if not model:
            return self.model_copy(update={"trace": _checked(TraceSettings, own)})
        _checked(TraceSettings, {**_plain(self.trace), **own})
        return self.model_copy(update={"model_traces": {**self.model_traces, model: own}})

    def trace_of(self, model: str) -> TraceSettings:
        """The trace settings of one model."""
        own = self.model_traces.get(model)
        return TraceSettings.model_validate({**_plain(self.trace), **own}) if own else self.trace


def write_settings(folder: Path, settings: Settings) -> None:
    """Keeps them for processes that start later."""
    partial = folder / f"{FILE_NAME}.partial"
    partial.write_text(settings.model_dump_json(), encoding="utf-8")
    os.replace(partial, folder / FILE_NAME)


def read_settings(folder: Path) -> Settings:
    """What was set, or how a service starts."""
    try:
        return Settings.model_validate_json((folder / FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings()


def _plain(settings: TraceSettings) -> dict[str, str]:
    return {key: str(value) for key, value in settings}


def _checked(kind: type[Strict], fields: Mapping[str, Any]) -> Strict:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise SettingsError(readable(error)) from error
