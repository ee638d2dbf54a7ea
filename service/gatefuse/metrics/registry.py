"""What is exported: the sum over every process' files, less what is gone, and what the driver knows of its node."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, multiprocess
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gatefuse.metrics import families
from gatefuse.metrics.exemplars import WithExemplars
from gatefuse.run_folder import metrics_folder

_MODEL_INFO = families.model_info._name
_CAPACITY = families.queue_capacity_rows._name
_QUEUE = families.queue_rows._name


def service_registry(node: Collector) -> CollectorRegistry:
    """The registry of the whole service, to be collected from in the driver; `node` has what is in no file."""
    # Else nothing would be left of what is asked for by `name[]`: the collectors know no names before they collect.
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(WithExemplars(_Processes(), metrics_folder.folder()))
    registry.register(node)
    return registry


class _Processes(Collector):
    """The sum over the files in PROMETHEUS_MULTIPROC_DIR."""

    def __init__(self) -> None:
        self._files = multiprocess.MultiProcessCollector(None)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        """Every family of every process."""
        yield from without_unloaded(self._files.collect())  # type: ignore[no-untyped-call]


def without_unloaded(metrics: Iterable[Metric]) -> list[Metric]:
    """Takes out what told of models that are unloaded: a file's series can only be set to zero."""
    by_name = {metric.name: metric for metric in metrics}
    for name in (_MODEL_INFO, _CAPACITY):
        if name in by_name:
            by_name[name].samples = [each for each in by_name[name].samples if each.value]
    if _CAPACITY in by_name and _QUEUE in by_name:
        served = {each.labels["model"] for each in by_name[_CAPACITY].samples}
        queue = by_name[_QUEUE]
        queue.samples = [each for each in queue.samples if each.labels["model"] in served]
    return list(by_name.values())
