"""How the service logs and what it traces, while it runs."""

from collections.abc import Mapping
from typing import Any, Protocol

from gatefuse.errors import InvalidRequest, Unsupported
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.run_folder.settings import LogSettings, Settings, TraceSettings
from gatefuse_protos import open_inference_pb2 as pb


class SettingsControl(Protocol):
    """Who changes settings, for every process of the service."""

    async def set_logging(self, changes: dict[str, Any]) -> None:
        """Returns when every process logs so. Raises InvalidRequest."""

    async def set_trace(self, model: str, changes: dict[str, list[str]]) -> None:
        """Returns when every frontend traces so. Raises InvalidRequest."""


class ServiceSettings:
    """TraceSetting and LogSettings."""

    def __init__(
        self, catalogue: Catalogue, control: SettingsControl | None = None, trace_file: str = ""
    ) -> None:
        """Without `control` settings can only be read; without `trace_file` nothing is traced."""
        self.current = Settings()
        self._catalogue = catalogue
        self._control = control
        self._trace_file = trace_file

    @property
    def extensions(self) -> tuple[str, ...]:
        """The names of what is on."""
        if self._control is None:
            return ()
        return ("logging", "trace") if self._trace_file else ("logging",)

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by name."""
        return {
            "TraceSetting": unary("TraceSetting", pb.TraceSettingRequest.FromString, self._trace),
            "LogSettings": unary("LogSettings", pb.LogSettingsRequest.FromString, self._log),
        }

    async def _log(
        self, request: pb.LogSettingsRequest, context: Context
    ) -> pb.LogSettingsResponse:
        changes: dict[str, Any] = {}
        for key, value in request.settings.items():
            if key == "log_file":
                raise Unsupported("log_file is fixed: the processes log to the server's stderr")
            if key not in LogSettings.model_fields:
                raise InvalidRequest("unsupported", f"unknown log setting {key[:64]!r}")
            field = value.WhichOneof("parameter_choice")
            if field is None:
                raise InvalidRequest("dtype", f"{key} has no value")
            changes[key] = getattr(value, field)
        if changes:
            await self._changer("log settings").set_logging(changes)
        response = pb.LogSettingsResponse()
        response.settings["log_file"].string_param = ""
        for key, value in self.current.log:
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(response.settings[key], kind, value)
        return response

    async def _trace(
        self, request: pb.TraceSettingRequest, context: Context
    ) -> pb.TraceSettingResponse:
        model = request.model_name
        if model:
            self._catalogue.find(model, "")
        changes = {key: list(setting.value) for key, setting in request.settings.items()}
        for key in changes:
            self._check_trace(key, changes[key])
        if changes:
            await self._changer("trace settings").set_trace(model, changes)
        response = pb.TraceSettingResponse()
        response.settings["trace_file"].value.append(self._trace_file)
        for key, value in self.current.trace_of(model):
            response.settings[key].value.append(str(value))
        return response

    def _check_trace(self, key: str, values: list[str]) -> None:
        if key == "trace_file":
            raise Unsupported("trace_file is fixed: the server was started with it")
        if key not in TraceSettings.model_fields:
            raise InvalidRequest("unsupported", f"unknown trace setting {key[:64]!r}")
        if not self._trace_file:
            raise Unsupported("tracing is off: start the server with --trace-file FILE")
        if key == "trace_level" and "TENSORS" in values:
            raise Unsupported("trace_level TENSORS is not there: rows are not written to files")

    def _changer(self, what: str) -> SettingsControl:
        if self._control is None:
            raise Unsupported(f"{what} cannot be changed here")
        return self._control
