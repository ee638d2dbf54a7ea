"""The models that the methods answer for: which are configured, which are loaded, and the state of each."""

from collections.abc import Callable, Container, Iterable, Mapping

from gatefuse.errors import NoReplica, NotFound, NotLoaded
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.requests import codec
from gatefuse.frontend.shared_memory import Regions
from gatefuse.frontend.telemetry import Observer
from gatefuse.link.served_model import ServedModel
from gatefuse.run_folder.roster import Roster


class Catalogue:
    """What the topics share: the models, and whether the server is on its way out."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        default_timeouts_s: Mapping[str, float],
        max_message_bytes: int,
        regions: Regions | None = None,
    ) -> None:
        """`default_timeouts_s` names every configured model; it holds for calls without a deadline.

        Neither a request nor an answer may be longer than `max_message_bytes`. `regions` are the clients' shared
        memory, None where that is off.
        """
        self.dispatcher = dispatcher
        self.observer = Observer()
        self.regions = regions
        self.default_timeouts_s = default_timeouts_s
        self.max_message_bytes = max_message_bytes
        # Where models come and go: which are loaded, and what tells which workers serve a load.
        self.roster: Roster | None = None
        self.serving: Callable[[str], Container[str]] = frozenset
        self.leaving = False  # set before a drain: no longer ready, still answering

    @property
    def going(self) -> bool:
        """True once the server is on its way out."""
        return self.leaving or self.dispatcher.draining

    @property
    def ready(self) -> bool:
        """True when every model that is not unloaded has a worker and the server is not on its way out."""
        return not self.going and all(map(self.dispatcher.is_ready, self._wanted()))

    def is_ready(self, name: str) -> bool:
        """True when the model can be used."""
        # A worker may still hold a model that is being unloaded.
        return not self.going and name in self._wanted() and self.dispatcher.is_ready(name)

    def state(self, name: str) -> tuple[str, str]:
        """A configured model's state in the words of the protocol, and why it is not READY."""
        if self.going:
            return "UNAVAILABLE", "the server is draining"
        entry = self.roster.find(name) if self.roster is not None else None
        if entry is not None and (entry.state != "READY" or entry.reason):
            return entry.state, entry.reason
        if entry is not None and self.dispatcher.is_ready(name):
            serving = self.serving(entry.key)
            missing = [worker for worker in entry.replicas if worker not in serving]
            return "READY", f"no answer from {', '.join(missing)}" if missing else ""
        if self.dispatcher.is_ready(name):
            return "READY", ""
        if name in self.dispatcher.models:
            return "UNAVAILABLE", "no worker is ready for the model"
        return "LOADING", "no worker has loaded the model yet"

    def _wanted(self) -> Iterable[str]:
        """The models that are served, or will be as soon as a worker has loaded them."""
        if self.roster is None:
            return self.default_timeouts_s
        return [entry.name for entry in self.roster.entries if entry.is_loaded]

    def find(self, name: str, version: str) -> None:
        """Checks that a model is configured, whether or not a worker has loaded it.

        Raises:
            NotFound: it is not, or has no such version.
            InvalidRequest: no model could have that name or version.
        """
        codec.check_name(name, version)
        if name not in self.default_timeouts_s:
            raise NotFound(f"no model is named '{name}'")
        codec.check_version(name, version)

    def loaded(self, name: str, version: str) -> ServedModel:
        """The model as its workers describe it.

        Raises:
            NotLoaded: it was unloaded.
            NoReplica: it is not loaded yet; else as `find`.
        """
        self.find(name, version)
        if name not in self.dispatcher.models:
            if name not in self._wanted():
                raise NotLoaded(f"model '{name}' is not loaded")
            raise NoReplica(f"model '{name}' is still loading")
        return codec.find_model(self.dispatcher.models, name, version)
