"""Every method of the Open Inference Protocol v2: puts the topics of `gatefuse.frontend.rpc` together."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.rpc.absent import absent_methods
from gatefuse.frontend.rpc.call import Handler, Topic
from gatefuse.frontend.rpc.catalogue import Catalogue
from gatefuse.frontend.rpc.cuda_shared_memory import CudaSharedMemory
from gatefuse.frontend.rpc.infer import Infer
from gatefuse.frontend.rpc.model_config import ModelConfiguration
from gatefuse.frontend.rpc.model_state import ModelState
from gatefuse.frontend.rpc.repository import ModelControl, Repository
from gatefuse.frontend.rpc.server_state import ServerState
from gatefuse.frontend.rpc.settings import ServiceSettings, SettingsControl
from gatefuse.frontend.rpc.shared_memory import SystemSharedMemory
from gatefuse.frontend.rpc.statistics import Statistics
from gatefuse.frontend.rpc.stream import StreamInfer
from gatefuse.frontend.shared_memory import Regions
from gatefuse_protos import open_inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Control:
    """What clients may change: `models` is None where that is off; without `trace_file` nothing is traced."""

    settings: SettingsControl
    models: ModelControl | None = None
    trace_file: str = ""


class Servicer:
    """Answers every method of `inference.GRPCInferenceService`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        default_timeouts_s: Mapping[str, float],
        max_message_bytes: int,
        regions: Regions | None = None,
        control: Control | None = None,
    ) -> None:
        """`default_timeouts_s` names every configured model; it holds for calls without a deadline.

        No request is taken whose answer could be longer than `max_message_bytes`. `regions` are the clients' shared
        memory, `control` changes models and settings; None where that is off.
        """
        self.catalogue = Catalogue(dispatcher, default_timeouts_s, max_message_bytes, regions)
        self._streams = StreamInfer(self.catalogue)
        settings_control, trace_file = (
            (control.settings, control.trace_file) if control else (None, "")
        )
        self.settings = ServiceSettings(self.catalogue, settings_control, trace_file)
        self._topics: tuple[Topic, ...] = (
            ServerState(self.catalogue, self._extensions),
            ModelState(self.catalogue),
            Infer(self.catalogue),
            self._streams,
            ModelConfiguration(self.catalogue),
            Statistics(self.catalogue),
            Repository(self.catalogue, control.models if control else None),
            self.settings,
            *_shared_memory(dispatcher, regions),
        )

    @property
    def ready(self) -> bool:
        """True when every configured model has a worker and the server is not on its way out."""
        return self.catalogue.ready

    def handler(self) -> grpc.GenericRpcHandler:
        """What to register with the server."""
        handlers: dict[str, Handler] = {}
        for topic in self._topics:
            handlers.update(topic.methods())
        handlers.update(absent_methods(handlers))
        return grpc.method_handlers_generic_handler(pb.SERVICE_NAME, handlers)

    def leave(self) -> None:
        """Before a drain: no longer ready, still answering."""
        self.catalogue.leaving = True

    def close_streams(self) -> None:
        """After a drain: ends the streams that are still open."""
        self._streams.close()

    def _extensions(self) -> list[str]:
        return [name for topic in self._topics for name in topic.extensions]


def _shared_memory(dispatcher: Dispatcher, regions: Regions | None) -> tuple[Topic, ...]:
    if regions is None:
        return ()
    return SystemSharedMemory(regions), CudaSharedMemory(regions, dispatcher)
