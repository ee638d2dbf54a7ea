"""What the dispatcher asks of a worker, whatever is between them."""

from collections.abc import Mapping
from typing import Protocol

from gatefuse.batching.batcher import Sealed
from gatefuse.frontend.shared_memory.lent_memory import Lender
from gatefuse.link.served_model import ServedModel


class Slot(Protocol):
    """A slot of a worker's arena, as the dispatcher writes and reads it."""

    input: memoryview
    output: memoryview


class WorkerPort(Protocol):
    """A worker, seen from here: what it serves, and whether it can take a batch."""

    models: Mapping[str, ServedModel]
    device: str  # as its process calls it
    device_label: str  # as metrics do: no other worker's is the same
    name: str  # of its place in the service, the same for the process that replaces it

    @property
    def memory(self) -> Lender:
        """What of clients' memory its device reads and writes by itself."""

    @property
    def credits(self) -> int:
        """Batches it can take now; 0 while it is not ready."""

    def claim_slot(self) -> Slot:
        """A free slot, which the next `send` uses."""

    def look(self) -> None:
        """Handles an answer if one is there; does not wait."""

    def send(self, sealed: Sealed, slot: Slot, last_deadline_s: float) -> None:
        """Sends the batch whose rows were written into the slot."""
