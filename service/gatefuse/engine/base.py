"""What a worker's loop asks of an engine, on whatever device."""

from typing import Any, NamedTuple, Protocol

from gatefuse.arena import Arena
from gatefuse.link import BatchMessage, DoneMessage, ServedModel


class Ticket(NamedTuple):
    """A batch at the engine; `peer` is whoever sent it, `started_s` when its packet was taken."""

    message: BatchMessage
    arena: Arena
    peer: Any
    started_s: float


class EngineFault(RuntimeError):
    """The device is in a state that only a new process mends."""


class Engine(Protocol):
    """One device and the models loaded on it. Used from one thread."""

    device: str
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

    def attach(self, arena: Arena) -> None:
        """Makes an arena usable by the device."""

    def detach(self, arena: Arena) -> None:
        """Forgets an arena; no batch of it is at the engine."""

    def submit(self, ticket: Ticket) -> None:
        """Starts a batch."""

    def completed(self) -> list[tuple[Ticket, DoneMessage]]:
        """The batches that ended since the last call, their rows in their slots."""
