"""Does what clients ask of the whole service: models that come and go, settings that hold everywhere."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gatefuse.config import ServiceConfig
from gatefuse.driver.control_server import Refused
from gatefuse.driver.model_control import Fleet, ModelControl
from gatefuse.logs import log_as
from gatefuse.run_folder.roster import Roster
from gatefuse.run_folder.settings import Settings, SettingsError, read_settings, write_settings


class Service(Fleet, Protocol):
    """The processes of a service, and what their workers loaded at the start."""

    roster: Roster

    def set(self, settings: Settings) -> None:
        """Has every process log and trace so."""


class Supervisor:
    """Answers the frontends' questions."""

    def __init__(self, config: ServiceConfig, folder: Path, service: Service) -> None:
        """`folder` is where processes that start later find what holds now."""
        self._folder = folder
        self._service = service
        self._settings = read_settings(folder)
        self._setting = threading.Lock()
        self._models = None
        if config.model_control == "explicit":
            self._models = ModelControl(folder, service.roster, service)

    @property
    def roster(self) -> Roster:
        """What is loaded now."""
        return self._service.roster if self._models is None else self._models.roster

    def __call__(self, question: Mapping[str, Any]) -> None:
        """Does what is asked for. Raises Refused."""
        operation = question["operation"]
        if operation == "log":
            self._change(lambda settings: settings.with_log(question["changes"]))
        elif operation == "trace":
            model, changes = question["model"], question["changes"]
            self._change(lambda settings: settings.with_trace(model, changes))
        elif self._models is None:
            raise Refused("model control is off")
        elif operation == "load":
            self._models.load(question["model"], question["config"])
        else:
            self._models.unload(question["model"])

    def _change(self, changed: Callable[[Settings], Settings]) -> None:
        with self._setting:
            try:
                self._settings = changed(self._settings)
            except SettingsError as error:
                raise Refused(str(error)) from error
            write_settings(self._folder, self._settings)
            log_as(self._settings.log)
            self._service.set(self._settings)
