"""The models there are, the state of each, and how they are loaded and unloaded."""

from collections.abc import Mapping
from typing import Any, Protocol

from gatefuse.errors import ControlOff, InvalidRequest, Unsupported
from gatefuse.frontend.requests import codec
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse_protos import open_inference_pb2 as pb

# A configuration is some lines.
MAX_CONFIG_LENGTH = 32 * 1024


class ModelControl(Protocol):
    """Who loads and unloads models, on every worker and for every frontend."""

    async def load(self, name: str, config: str | None) -> None:
        """Returns when requests get the model, with `config` (JSON) laid over its configuration.

        Raises:
            ServiceError: it could not be loaded; what was served before still is.
        """

    async def unload(self, name: str) -> None:
        """Returns when requests that had it are answered and its memory is free.

        Raises:
            ServiceError: there is no such model.
        """


class Repository:
    """RepositoryIndex, RepositoryModelLoad and RepositoryModelUnload."""

    def __init__(self, catalogue: Catalogue, control: ModelControl | None = None) -> None:
        """Lists the models of `catalogue`; without `control` they stay as they are."""
        self._catalogue = catalogue
        self._control = control

    @property
    def extensions(self) -> tuple[str, ...]:
        """The names of what is on."""
        if self._control is None:
            return ()
        return ("model_repository", "model_repository(unload_dependents)")

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by name."""
        return {
            "RepositoryIndex": unary(
                "RepositoryIndex", pb.RepositoryIndexRequest.FromString, self._index
            ),
            "RepositoryModelLoad": unary(
                "RepositoryModelLoad", pb.RepositoryModelLoadRequest.FromString, self._load
            ),
            "RepositoryModelUnload": unary(
                "RepositoryModelUnload", pb.RepositoryModelUnloadRequest.FromString, self._unload
            ),
        }

    async def _index(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        _check_repository(request.repository_name)
        response = pb.RepositoryIndexResponse()
        for name in self._catalogue.default_timeouts_s:
            state, reason = self._catalogue.state(name)
            if state == "READY" or not request.ready:
                response.models.add(name=name, version=codec.VERSION, state=state, reason=reason)
        return response

    async def _load(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        control = self._control_for(request)
        config: str | None = None
        for key, value in request.parameters.items():
            if key.startswith("file:"):
                raise InvalidRequest(
                    "unsupported", "files are not taken from requests: the operator puts them there"
                )
            if key != "config":
                raise InvalidRequest(
                    "unsupported", f"unknown parameter {key[:64]!r}: 'config' is one"
                )
            config = _chosen(value, "string_param", key)
            if len(config) > MAX_CONFIG_LENGTH:
                raise InvalidRequest(
                    "size", f"config is longer than {MAX_CONFIG_LENGTH} characters"
                )
        await control.load(request.model_name, config)
        return pb.RepositoryModelLoadResponse()

    async def _unload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        control = self._control_for(request)
        for key, value in request.parameters.items():
            if key != "unload_dependents":
                raise InvalidRequest(
                    "unsupported", f"unknown parameter {key[:64]!r}: 'unload_dependents' is one"
                )
            _chosen(value, "bool_param", key)  # no model has any
        await control.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _control_for(self, request: Any) -> ModelControl:
        if self._control is None:
            raise ControlOff
        _check_repository(request.repository_name)
        codec.check_name(request.model_name, "")
        return self._control


def _check_repository(name: str) -> None:
    if name:
        raise Unsupported("there is one repository: leave repository_name empty")


def _chosen(value: pb.ModelRepositoryParameter, field: str, key: str) -> Any:
    if value.WhichOneof("parameter_choice") != field:
        raise InvalidRequest("dtype", f"parameter {key!r} must be a {field}")
    return getattr(value, field)
