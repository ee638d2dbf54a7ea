"""What the status page and the metrics are told by the driver: the roster's models and the cluster's workers."""

from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from gatefuse.config import ModelConfig
from gatefuse.run_folder.roster import Entry, Roster
from gatefuse.run_folder.slots import slot_of
from gatefuse.status.facts import Facts, ModelFacts, WorkerFacts
from gatefuse_kernels.expression import Program, parse_program


class Models(Protocol):
    """Knows what is loaded."""

    @property
    def roster(self) -> Roster:
        """What is loaded now."""


class Workers(Protocol):
    """Knows the workers."""

    def workers(self) -> tuple[WorkerFacts, ...]:
        """Every worker, by slot."""

    def pids(self) -> Mapping[str, int]:
        """Every process of the service, by name."""


class DriverFacts:
    """The facts now. `grpc` is set when the service is ready, `draining` when it stops."""

    def __init__(self, models: Models, workers: Workers) -> None:
        """Asks them each time."""
        self.grpc = ""
        self.draining = False
        self._models = models
        self._workers = workers

    def __call__(self) -> Facts:
        """What the page is drawn from."""
        groups: dict[Hashable, int] = {}
        models = tuple(
            _model(entry, groups.setdefault(_computes(entry.config), len(groups)))
            for entry in self._models.roster.entries
        )
        workers, pids = self._workers.workers(), self._workers.pids()
        return Facts(self.grpc, self.draining, models, workers, pids)

    def models_ready(self) -> dict[str, bool]:
        """Whether some worker can run it, of each model that is loaded."""
        ready = {worker.slot for worker in self._workers.workers() if worker.state == "ready"}
        return {
            entry.name: not ready.isdisjoint(_slots(entry))
            for entry in self._models.roster.entries
            if entry.is_loaded
        }


def _model(entry: Entry, group: int) -> ModelFacts:
    config = entry.config
    return ModelFacts(
        name=entry.name,
        kind=config.kind,
        backend=config.backend,
        dtype=config.dtype,
        group=group,
        workers=_slots(entry),
        state=entry.state,
        reason=entry.reason,
    )


def _slots(entry: Entry) -> tuple[int, ...]:
    return tuple(slot_of(Path(socket)) for socket in entry.replicas)


def _computes(config: ModelConfig) -> Hashable:
    """Equal for models that compute the same function of the same weights."""
    if config.is_mlp:
        return config.kind, config.weights_key
    assert config.expression is not None
    vectors = tuple(config.vectors.items())
    return _program(config.expression, tuple(config.scalars.items()), vectors, config.outputs)


@lru_cache(maxsize=1024)
def _program(
    expression: str,
    scalars: tuple[tuple[str, float], ...],
    vectors: tuple[tuple[str, Hashable], ...],
    outputs: tuple[str, ...] | None,
) -> tuple[Program, Hashable]:
    names = tuple(name for name, _ in vectors)
    return parse_program(expression, dict(scalars), names, outputs), vectors
