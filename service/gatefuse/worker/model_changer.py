"""A worker's models while it serves: loads one more beside the batches, lets one go."""

import gc
import logging
from typing import TYPE_CHECKING

from gatefuse.config import ConfigError, ModelConfig, VectorFile
from gatefuse.run_folder.roster import Entry
from gatefuse.worker.engine.base import Engine
from gatefuse.worker.link_server import LinkServer, welcome
from gatefuse_kernels.errors import BackendUnavailableError, CheckpointError

if TYPE_CHECKING:
    from gatefuse.worker.engine.models import ModelLoader  # torch takes seconds to import

log = logging.getLogger(__name__)


class ModelChanger:
    """Works on the threads of its callers; what touches batches is done by the serving thread."""

    def __init__(
        self, engine: Engine, server: LinkServer, loader: "ModelLoader", threads: int
    ) -> None:
        """`threads` is how many a computation on a CPU takes."""
        self._engine = engine
        self._server = server
        self._loader = loader
        self._threads = threads

    def load(self, entry: Entry) -> str:
        """Loads a model and has it served; returns why it failed, in words for a client, else nothing."""
        import torch

        # Both belong to the thread.
        torch.set_num_threads(self._threads)
        torch.set_grad_enabled(False)
        config = entry.config
        try:
            model = self._loader.load(config, entry.index, entry.generation)
            added = self._engine.add(model)
            welcome(self._engine, (*self._engine.served, added.served))
            self._server.call(added.begin)
        except (BackendUnavailableError, CheckpointError, ConfigError) as error:
            log.warning("%s could not be loaded: %s", config.name, error)
            return without_paths(config, str(error))
        except Exception as error:
            log.exception("%s could not be loaded", config.name)
            # The CPU's allocator has no class of its own.
            is_full = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if is_full or "can't allocate memory" in str(error):
                return "there is not enough memory"
            return "an internal error: the server's log says which"
        finally:
            _let_go()
        log.info("%s: %s", model.served.key, model.served.description)
        return ""

    def unload(self, index: int) -> None:
        """Lets a model go and frees its memory; nothing happens when it is not there."""
        if index in [model.index for model in self._engine.served]:
            self._server.call(lambda: self._engine.remove(index))
            _let_go()


def without_paths(config: ModelConfig, text: str) -> str:
    """The text with the operator's paths replaced by their keys: it goes to clients."""
    paths = {"checkpoint": config.checkpoint} if config.checkpoint is not None else {}
    for name, vector in config.vectors.items():
        if isinstance(vector, VectorFile):
            paths[f"constants.{name}.file"] = vector.file
    for key, path in paths.items():
        text = text.replace(str(path), f"<{key}>")
    return text


def _let_go() -> None:
    """Returns memory that nothing holds to the device."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
