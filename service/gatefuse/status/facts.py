"""What the driver knows and no counter tells: which models and workers there are, and in which state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker; `slot` stays when its process is replaced, `restarts` counts that."""

    slot: int
    state: str
    device: str
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One configured model.

    Models of one `group` compute the same function of the same weights. `state` is that of the repository: READY,
    LOADING, UNLOADING or UNAVAILABLE. `workers` are the slots that it is placed on.
    """

    name: str
    kind: str
    backend: str  # as configured: auto, too
    dtype: str
    group: int
    workers: tuple[int, ...]
    state: str = "READY"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The service; nothing of it is there before the workers are placed. `pids` are its processes', by name."""

    grpc: str = ""  # HOST:PORT once it is ready
    draining: bool = False
    models: tuple[ModelFacts, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    pids: Mapping[str, int] = field(default_factory=dict)


NOT_PLACED = Facts()
