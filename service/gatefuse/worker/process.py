"""The process that owns one device: loads its models, then serves batches from its links until it is told to stop."""

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gatefuse.config import ConfigError, ModelConfig
from gatefuse.device_report import DeviceReport
from gatefuse.link import packets
from gatefuse.logs import log_as
from gatefuse.run_folder.roster import Entry, read_roster
from gatefuse.run_folder.settings import Settings, read_settings
from gatefuse.run_folder.slots import fault_marker
from gatefuse.worker.engine.base import Engine
from gatefuse.worker.engine.faults import DeviceFaults, kind_of
from gatefuse.worker.link_server import LinkServer, welcome
from gatefuse.worker.model_changer import ModelChanger
from gatefuse_kernels.errors import BackendUnavailableError, CheckpointError
from gatefuse_kernels.plan import PlanTable

log = logging.getLogger(__name__)

EXIT_DEVICE_FAULT = 70
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker tells its supervisor: state is starting, warming, ready or failed."""

    pid: int
    state: str
    error: str = ""
    device: DeviceReport = field(default_factory=DeviceReport)


class Worker:
    """The actor. Its thread does the work, so that control calls are answered at any time."""

    def __init__(
        self,
        socket_path: str,
        models: Sequence[ModelConfig],
        device: str,
        threads: int,
        plan_table: PlanTable | None = None,
    ) -> None:
        """Begins to load `models`, or what the roster beside the socket says.

        `socket_path` is where frontends will find the link.
        """
        self._socket_path = Path(socket_path)
        self._served_marker = self._socket_path.with_suffix(".served")
        self._models = models
        self._device = device
        self._threads = threads
        self._plan_table = plan_table
        self._changer: ModelChanger | None = None
        self._report = WorkerReport(os.getpid(), "starting")
        self._faults = DeviceFaults()
        self._report_device = self._gpu_report = _without_gpu
        self._log_as(read_settings(self._socket_path.parent))
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def report(self) -> WorkerReport:
        """The state now."""
        return replace(self._report, device=self._report_device(dict(self._faults.counts)))

    def set(self, settings: str) -> None:
        """Logs as the settings, as JSON, say from now on."""
        self._log_as(Settings.model_validate_json(settings))

    def _log_as(self, settings: Settings) -> None:
        log_as(settings.log, self._socket_path.stem, self._socket_path.parent)

    def load(self, entry: str) -> str:
        """Loads one more model, a roster's entry as JSON, beside the batches; returns why it failed, else nothing."""
        if self._changer is None:
            return "the worker is starting"
        return self._changer.load(Entry.read_again(entry))

    def unload(self, index: int) -> None:
        """Lets a model go and frees its memory; nothing happens when it is not there."""
        if self._changer is not None:
            self._changer.unload(index)

    def _run(self) -> None:
        try:
            engine = self._make_engine()
            self._report = WorkerReport(os.getpid(), "warming")
            engine.warm_up()
            welcome(engine, engine.served)
            # Only now: the graphs are all captured.
            self._report_device = self._gpu_report
        except (CheckpointError, ConfigError, BackendUnavailableError) as error:
            self._exit_if_it_once_served()
            self._report = WorkerReport(os.getpid(), "failed", str(error))
            return
        except Exception as error:
            log.exception("the worker could not start")
            self._exit_if_it_once_served()
            self._report = WorkerReport(os.getpid(), "failed", f"{type(error).__name__}: {error}")
            return
        self._serve(engine)

    def _exit_if_it_once_served(self) -> None:
        """A replaced worker that cannot load, while its forerunner still holds the memory, say, is tried again."""
        if self._served_marker.exists():
            time.sleep(RETRY_S)
            logging.shutdown()
            os._exit(EXIT_DEVICE_FAULT)

    def _serve(self, engine: Engine) -> None:
        try:
            self._served_marker.touch()
            # A worker that was killed leaves its socket file behind.
            self._socket_path.unlink(missing_ok=True)
            server = packets.listen(str(self._socket_path))
            link_server = LinkServer(engine, server, self._faults.note)
            self._changer = ModelChanger(engine, link_server, self._loader, self._threads)
            self._report = WorkerReport(os.getpid(), "ready")
            link_server.run()
        except BaseException as error:
            # Whatever it was, a new process serves sooner and safer than this one.
            log.exception("the worker's loop failed")
            if (kind := kind_of(error)) is not None:
                fault_marker(self._socket_path, os.getpid()).write_text(kind)
            logging.shutdown()
            os._exit(EXIT_DEVICE_FAULT)

    def _make_engine(self) -> Engine:
        # torch takes seconds to import: only the engine's thread waits for it.
        import torch

        from gatefuse.worker.engine.cpu import CpuEngine
        from gatefuse.worker.engine.models import ModelLoader

        torch.set_num_threads(self._threads)
        torch.set_grad_enabled(False)
        on_gpu = self._device == "cuda"
        if on_gpu and not torch.cuda.is_available():
            raise ConfigError("device: cuda is asked for, but torch finds no GPU")
        device = torch.device("cuda:0" if on_gpu else "cpu")
        self._loader = ModelLoader(device, self._plan_table)
        models = [
            self._loader.load(config, index, generation)
            for index, generation, config in self._assigned()
        ]
        for model in models:
            log.info("%s: %s", model.served.name, model.served.description)
        if on_gpu:
            from gatefuse.worker.engine.cuda import CudaEngine
            from gatefuse.worker.engine.cuda_report import CudaReport

            engine, loader = CudaEngine(models), self._loader
            self._gpu_report = CudaReport(
                device, lambda: loader.weight_bytes, lambda: engine.graph_pools
            )
            return engine
        return CpuEngine(models)

    def _assigned(self) -> Iterable[tuple[int, int, ModelConfig]]:
        """Index, generation and configuration of what is to be served from the start."""
        roster = read_roster(self._socket_path.parent)
        if roster is None:
            return [(index, 0, config) for index, config in enumerate(self._models)]
        entries = roster.on_worker(self._socket_path.name)
        return [(entry.index, entry.generation, entry.config) for entry in entries]


def _without_gpu(errors: dict[str, int]) -> DeviceReport:
    return DeviceReport(errors=errors)
