"""What a worker's loop asks of an engine, on whatever device."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gatefuse.link.arena import Arena
from gatefuse.link.memory import Move, OpenMemory
from gatefuse.link.messages import BatchMessage, DoneMessage
from gatefuse.link.served_model import ServedModel

if TYPE_CHECKING:
    from gatefuse.worker.engine.models import LoadedModel  # torch takes seconds to import


class Ticket(NamedTuple):
    """A batch at the engine; `peer` is whoever sent it, `started_s` when its packet was taken."""

    message: BatchMessage
    arena: Arena
    peer: Any
    started_s: float
    moves: "tuple[DirectMove, ...]" = ()


class OpenedMemory(Protocol):
    """A client's memory that the device uses in place."""

    def close(self) -> None:
        """Lets it go."""


class DirectMove(NamedTuple):
    """A move between a batch's tensors and a client's memory."""

    memory: Any
    move: Move


class Added(NamedTuple):
    """A model that is warmed up: `begin`, called on the engine's thread, makes it served."""

    served: ServedModel
    begin: Callable[[], None]


class EngineFault(RuntimeError):
    """The device is in a state that only a new process mends."""


class Engine(Protocol):
    """One device and the models loaded on it. Used from one thread."""

    device: str
    in_place: bool  # whether it opens clients' memory; else frontends copy
    batches_in_flight: int  # what a frontend may send before the first is answered

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """What it serves, by index."""

    @property
    def has_room(self) -> bool:
        """True when `submit` may be called."""

    @property
    def busy(self) -> bool:
        """True while a submitted batch has not been returned by `completed`."""

    def warm_up(self) -> None:
        """Compiles and captures whatever a request would otherwise wait for."""

    def add(self, model: "LoadedModel") -> Added:
        """Warms up a model beside the batches; may be called on any one thread."""

    def remove(self, index: int) -> None:
        """Lets a model go; no batch of it is at the engine."""

    def attach(self, arena: Arena) -> None:
        """Makes an arena usable by the device."""

    def detach(self, arena: Arena) -> None:
        """Forgets an arena; no batch of it is at the engine."""

    def open_memory(self, message: OpenMemory, fd: int) -> OpenedMemory:
        """Makes a client's memory usable by the device; `fd` is the file's, if it is one.

        Raises OSError, RuntimeError or ValueError where that cannot be.
        """

    def close_memory(self, memory: OpenedMemory) -> None:
        """Lets it go, after the batches that use it."""

    def submit(self, ticket: Ticket) -> None:
        """Starts a batch."""

    def completed(self) -> list[tuple[Ticket, DoneMessage]]:
        """The batches that ended since the last call, their rows in their slots."""
