"""The folder of the metrics' files: prometheus_client finds it in the environment, at the moment it is imported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def prepare(run_dir: Path, *, wanted: bool) -> None:
    """Makes the folder and names it in the environment; names none where no metrics are wanted."""
    os.environ.pop(_VARIABLE, None)
    if wanted:
        made = run_dir / "metrics"
        made.mkdir()
        os.environ[_VARIABLE] = str(made)


def folder() -> Path:
    """Where it is. Raises KeyError where no metrics are wanted."""
    return Path(os.environ[_VARIABLE])


def variables() -> dict[str, str]:
    """What a process of the service needs in its environment to write its metrics there."""
    return {_VARIABLE: os.environ[_VARIABLE]} if _VARIABLE in os.environ else {}


@contextmanager
def hidden() -> Iterator[None]:
    """For the start of processes of others, some of which would add their metrics to ours."""
    kept = variables()
    os.environ.pop(_VARIABLE, None)
    try:
        yield
    finally:
        os.environ.update(kept)
