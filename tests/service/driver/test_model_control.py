"""What is loaded: one change at a time, everywhere or nowhere, in an order in which no request is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from gatefuse.config import ModelConfig
from gatefuse.driver.control_server import Refused
from gatefuse.driver.model_control import ModelControl, overridden
from gatefuse.run_folder.roster import Entry, Roster, read_roster, write_roster

FFN = ModelConfig(name="ffn", checkpoint=Path("/secret/ffn"), replicas=2)
TIMES = ModelConfig(
    name="times", kind="elementwise", expression="x * k + v", constants={"k": 2.0, "v": (1.0, 2.0)}
)
TWO = ("worker-0.sock", "worker-1.sock")


class FakeFleet:
    """Notes what it is told, in order; `broken` says why a worker cannot load."""

    def __init__(self, folder: Path) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.broken: dict[str, str] = {}
        self._folder = folder

    def load(self, worker: str, entry: Entry) -> str:
        self.told.append(("load", worker, entry.index, entry.generation))
        return self.broken.get(worker, "")

    def unload(self, worker: str, index: int) -> None:
        self.told.append(("unload", worker, index))

    def update(self, roster: Roster, changed: Sequence[str] = (), finished: str = "") -> None:
        # Whoever starts now must find what those are told that are there.
        assert read_roster(self._folder) == roster
        loaded = {entry.name: entry.key for entry in roster.entries if entry.is_loaded}
        self.told.append(("update", loaded, tuple(changed), finished))


class Bed:
    """A control of two models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = FakeFleet(folder)
        entries = (
            Entry(config=FFN, index=0, replicas=TWO),
            Entry(config=TIMES, index=1, replicas=TWO[:1]),
        )
        self.control = ModelControl(folder, Roster(entries=entries), self.fleet)

    def entry(self, name: str) -> Entry:
        """What a process that starts now reads."""
        roster = read_roster(self.folder)
        assert roster is not None
        entry = roster.find(name)
        assert entry is not None
        return entry


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_a_reload_is_on_every_worker_before_requests_get_it_and_the_old_one_goes_last(
    bed: Bed,
) -> None:
    bed.control.load("ffn", '{"backend": "eager"}')
    old = {"ffn": "ffn", "times": "times"}
    assert bed.fleet.told == [
        ("update", old, (), ""),
        ("load", TWO[0], 2, 1),
        ("load", TWO[1], 2, 1),
        ("update", {**old, "ffn": "ffn@1"}, TWO, "ffn"),
        ("unload", TWO[0], 0),
        ("unload", TWO[1], 0),
    ]
    entry = bed.entry("ffn")
    assert (entry.index, entry.key, entry.state, entry.reason) == (2, "ffn@1", "READY", "")
    assert entry.config.backend == "eager"
    assert entry.config.checkpoint == FFN.checkpoint


def test_numbers_are_never_used_again(bed: Bed) -> None:
    bed.fleet.broken = {TWO[0]: "no memory"}
    with pytest.raises(Refused):
        bed.control.load("times")
    bed.fleet.broken = {}
    bed.control.load("times")
    bed.control.unload("times")
    bed.control.load("times")
    loads = [told[2:] for told in bed.fleet.told if told[0] == "load"]
    assert loads == [(2, 1), (3, 2), (4, 3)]


def test_an_unload_refuses_first_and_frees_last(bed: Bed) -> None:
    bed.control.unload("times")
    assert bed.fleet.told == [
        ("update", {"ffn": "ffn"}, (), "times"),
        ("unload", TWO[0], 1),
        ("update", {"ffn": "ffn"}, (), ""),
    ]
    assert (bed.entry("times").state, bed.entry("times").reason) == ("UNAVAILABLE", "unloaded")
    bed.fleet.told.clear()
    bed.control.unload("times")
    assert not bed.fleet.told


def test_a_load_that_fails_on_one_worker_is_taken_back_on_all(bed: Bed) -> None:
    bed.fleet.broken = {TWO[1]: "no memory"}
    with pytest.raises(Refused, match="'ffn' could not be loaded: worker-1: no memory"):
        bed.control.load("ffn", '{"backend": "eager"}')
    assert bed.fleet.told[-3:-1] == [("unload", TWO[0], 2), ("unload", TWO[1], 2)]
    entry = bed.entry("ffn")
    assert (entry.index, entry.is_loaded, entry.state) == (0, True, "READY")
    assert entry.reason == "the last load failed: worker-1: no memory"
    assert entry.config == FFN
    bed.fleet.broken = {}
    bed.control.load("ffn")
    assert bed.entry("ffn").reason == ""


def test_a_load_that_fails_leaves_an_unloaded_model_unloaded(bed: Bed) -> None:
    bed.control.unload("times")
    bed.fleet.broken = {TWO[0]: "no memory"}
    with pytest.raises(Refused):
        bed.control.load("times")
    entry = bed.entry("times")
    assert (entry.is_loaded, entry.state) == (False, "UNAVAILABLE")
    assert "no memory" in entry.reason


def test_a_load_without_a_configuration_is_what_the_operator_wrote(bed: Bed) -> None:
    bed.control.load("times", '{"constants": {"k": 3}}')
    assert bed.entry("times").config.constants == {"k": 3.0}
    bed.control.load("times")
    assert bed.entry("times").config == TIMES


@pytest.mark.parametrize("operation", ["load", "unload"])
def test_only_configured_models(bed: Bed, operation: str) -> None:
    with pytest.raises(Refused, match="no model is named 'other'"):
        getattr(bed.control, operation)("other")
    assert not bed.fleet.told


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"checkpoint": "/etc"}', "'checkpoint' cannot be given"),
        ('{"like": "other"}', "'like' cannot be given"),
        ('{"name": "x"}', "'name' cannot be given"),
        ('{"replicas": 1}', "'replicas' cannot be given"),
        ('{"constants": {"v": {"file": "/etc/passwd", "tensor": "t"}}}', "cannot name a file"),
        ('{"constants": {"v": {"tensor": "t"}}}', "cannot name a file"),
        ('{"batching": {"max_batch_rows": 0}}', "config: batching.max_batch_rows: "),
        ('{"expression": "y ="}', "config: "),
        ('{"random": {"hidden": 8, "intermediate": 8}}', "'random' cannot be given"),
        ('{"dtype": "fp16", "dtype": "fp32"}', "not valid JSON: the key 'dtype' is given twice"),
        (
            '{"batching": {"max_batch_rows": 1, "max_batch_rows": 2}}',
            "'max_batch_rows' is given twice",
        ),
    ],
)
def test_what_a_request_may_not_say(given: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        overridden(TIMES, given)


@pytest.mark.parametrize("given", [None, "", " "])
def test_nothing_said(given: str | None) -> None:
    assert overridden(FFN, given) is FFN


def test_keys_of_the_file_are_laid_over(bed: Bed) -> None:
    changed = overridden(FFN, json.dumps({"dtype": "fp16", "batching": {"max_batch_rows": 7}}))
    assert changed == ModelConfig(
        name="ffn",
        checkpoint=Path("/secret/ffn"),
        replicas=2,
        dtype="fp16",  # type: ignore[arg-type]
        batching={"max_batch_rows": 7},  # type: ignore[arg-type]
    )


def test_a_roster_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also when a file that it names is there no more: a frontend that starts then reads no vectors."""
    path = tmp_path / "w.safetensors"
    save_file({"t": np.ones(2, np.float32)}, path)
    constants = {"k": 2.0, "v": (1.0, 2.0), "f": {"file": path, "tensor": "t"}}
    config = ModelConfig(
        name="times",
        kind="elementwise",
        expression="x * k * v * f",
        constants=constants,  # type: ignore[arg-type]
    )
    entry = Entry(config=config, index=3, generation=2, replicas=TWO)
    write_roster(tmp_path, Roster(entries=(entry,)))
    path.unlink()
    assert read_roster(tmp_path) == Roster(entries=(entry,))
    assert read_roster(tmp_path / "nowhere") is None
    assert [each.name for each in Roster(entries=(entry,)).on_worker(TWO[0])] == ["times"]
    assert not Roster(entries=(entry,)).on_worker("worker-7.sock")


@pytest.mark.parametrize(
    "given",
    [
        {"random": {"hidden": 8, "intermediate": 16}},
        {"kind": "elementwise", "expression": "x * s", "constants": {"s": [1, 2, 3]}},
    ],
    ids=["mlp", "elementwise"],
)
def test_keys_that_were_not_given_stay_so(given: dict[str, Any], tmp_path: Path) -> None:
    """Some keys must not be given beside others, not even as what they are without."""
    config = ModelConfig.model_validate({"name": "m", **given})
    roster = Roster(entries=(Entry(config=config, index=0, replicas=("w",)),))
    write_roster(tmp_path, roster)
    found = read_roster(tmp_path)
    assert found == roster
    changed = overridden(config, '{"dtype": "fp16", "batching": {"max_batch_rows": 16}}')
    assert changed.given().keys() == {"name", *given, "dtype", "batching"}


def test_a_refusal_tells_no_path(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"t": np.ones(2, np.float32)}, path)
    vector = {"v": {"file": path, "tensor": "t"}}
    fields = {"name": "m", "kind": "elementwise", "expression": "x * v", "constants": vector}
    config = ModelConfig.model_validate(fields)
    path.unlink()
    with pytest.raises(Refused, match=r"<constants\.v\.file> cannot be read") as caught:
        overridden(config, '{"dtype": "fp16"}')
    assert str(tmp_path) not in str(caught.value)
