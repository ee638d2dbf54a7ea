"""The loads of models that a frontend knows, each with its series: which of them requests get, which only finish."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gatefuse import metrics
from gatefuse.frontend.statistics import ModelStatistics, StatisticsBook
from gatefuse.link.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a model, and where what it does is counted."""

    model: ServedModel
    metrics: metrics.ModelMetrics
    statistics: ModelStatistics


class Loads:
    """`by_key` are those that some worker named; `current` are the models by name, as requests get them."""

    def __init__(self, statistics: StatisticsBook, queued_rows: Callable[[str], int]) -> None:
        """`queued_rows` tells how many rows of a load wait."""
        self.current: dict[str, ServedModel] = {}
        self._statistics = statistics
        self._queued_rows = queued_rows
        self.by_key: dict[str, Load] = {}
        self._watched: set[str] = set()
        self._chosen: Mapping[str, str] | None = None

    def learn(self, model: ServedModel, capacity_rows: int, device: str) -> None:
        """The worker with that device, by its label, serves it."""
        name, key = model.name, model.key
        if key not in self.by_key:
            series = metrics.ModelMetrics(model, capacity_rows)
            counts = self._statistics.open(name, model.max_batch_rows)
            self.by_key[key] = Load(model, series, counts)
        self.by_key[key].metrics.meet_device(device)
        if name not in self._watched:
            self._watched.add(name)
            metrics.watch_queue(name, lambda: self._waiting_rows(name))
        if self._chosen is None or self._chosen.get(name) == key:
            self.current[name] = model

    def choose(self, keys: Mapping[str, str]) -> None:
        """From now on requests for a model get the load with this key; for a model that is not in `keys`, none."""
        self._chosen = dict(keys)
        self.current.clear()
        for name, key in keys.items():
            if key in self.by_key:
                self.current[name] = self.by_key[key].model

    def forget(self, key: str) -> None:
        """No worker has it any more, and no request."""
        if (load := self.by_key.pop(key, None)) is not None:
            load.metrics.close()

    def keys_of(self, name: str) -> list[str]:
        """Every load of that model."""
        return [key for key, load in self.by_key.items() if load.model.name == name]

    def _waiting_rows(self, name: str) -> int:
        return sum(map(self._queued_rows, self.keys_of(name)))
