"""What a worker says of its device beside its state: read by the driver twice a second, never on a batch's way."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device as the worker that owns it sees it.

    `uuid` is a GPU's own name, whatever number the process knows it by; empty on a CPU. `memory` is bytes by kind, as
    the allocator counts them; empty on a CPU. `errors` are faults by kind since the process started.
    """

    uuid: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
