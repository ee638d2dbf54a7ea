"""What the page is told of models and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from gatefuse.config import parse_config
from gatefuse.driver.facts import DriverFacts
from gatefuse.run_folder.roster import Entry, Roster
from gatefuse.status.facts import Facts, ModelFacts, WorkerFacts

WORKERS = (WorkerFacts(0, "ready", "cpu"), WorkerFacts(1, "dead", "cpu", restarts=3))
PIDS = {"driver": 1, "worker-0": 2}
RANDOM = {"hidden": 8, "intermediate": 16}


class Service:
    """Models and workers that are what a test says."""

    def __init__(self, *models: dict[str, Any], **entry: Any) -> None:
        configs = parse_config({"models": list(models)}, Path()).models
        replicas = ("worker-0.sock", "worker-11.sock")
        self.roster = Roster(
            entries=tuple(
                Entry(config=config, index=index, replicas=replicas, **entry)
                for index, config in enumerate(configs)
            )
        )

    def workers(self) -> tuple[WorkerFacts, ...]:
        return WORKERS

    def place(self, name: str, *slots: int) -> None:
        """Puts a model on these workers alone."""
        entry = self.roster.find(name)
        assert entry is not None
        replicas = tuple(f"worker-{slot}.sock" for slot in slots)
        self.roster = self.roster.with_entry(entry.model_copy(update={"replicas": replicas}))

    def pids(self) -> dict[str, int]:
        return PIDS


def test_models_and_workers() -> None:
    service = Service({"name": "ffn", "random": RANDOM, "backend": "eager", "dtype": "fp16"})
    facts = DriverFacts(service, service)
    model = ModelFacts("ffn", "swiglu", "eager", "fp16", 0, (0, 11))
    assert facts() == Facts("", False, (model,), WORKERS, PIDS)
    facts.grpc, facts.draining = "127.0.0.1:1", True
    assert facts() == Facts("127.0.0.1:1", True, (model,), WORKERS, PIDS)


def test_the_state_of_the_roster_is_told() -> None:
    service = Service({"name": "ffn", "random": RANDOM}, state="UNAVAILABLE", reason="unloaded")
    (model,) = DriverFacts(service, service)().models
    assert (model.state, model.reason) == ("UNAVAILABLE", "unloaded")


def test_a_model_is_ready_where_one_of_its_workers_is() -> None:
    service = Service({"name": "both", "random": RANDOM}, {"name": "dead", "random": RANDOM})
    service.place("both", 0, 1)
    service.place("dead", 1)
    assert DriverFacts(service, service).models_ready() == {"both": True, "dead": False}


def test_an_unloaded_model_is_neither() -> None:
    service = Service({"name": "ffn", "random": RANDOM}, is_loaded=False)
    assert DriverFacts(service, service).models_ready() == {}


def test_models_that_compute_the_same_are_a_group(tmp_path: Path) -> None:
    file = tmp_path / "vectors.safetensors"
    save_file({"t": np.ones(2, np.float32)}, file)

    def chain(name: str, expression: str, **keys: Any) -> dict[str, Any]:
        return {"name": name, "kind": "elementwise", "expression": expression, **keys}

    service = Service(
        {"name": "ffn", "random": RANDOM},
        {"name": "ffn-eager", "like": "ffn", "backend": "eager"},
        {"name": "geglu", "like": "ffn", "kind": "geglu"},
        chain("double", "x * 2"),
        chain("twice", "x * 2"),
        chain("triple", "x*k", constants={"k": 3}),
        chain("add", "x + v", constants={"v": [1.0, 2.0]}),
        chain("add-too", "x + v", constants={"v": [1.0, 2.0]}),
        chain("add-other", "x + v", constants={"v": [1.0, 3.0]}),
        chain("add-file", "x + v", constants={"v": {"file": str(file), "tensor": "t"}}),
    )
    facts = DriverFacts(service, service)()
    groups = {model.name: model.group for model in facts.models}
    assert groups == {
        "ffn": 0,
        "ffn-eager": 0,
        "geglu": 1,
        "double": 2,
        "twice": 2,
        "triple": 3,
        "add": 4,
        "add-too": 4,
        "add-other": 5,
        "add-file": 6,
    }
