"""Decides what is loaded: one change after the other, on all workers and for all frontends, or not at all."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from gatefuse.config import ModelConfig
from gatefuse.config.errors import readable
from gatefuse.driver.control_server import Refused
from gatefuse.run_folder.roster import Entry, Roster, State, write_roster
from gatefuse.worker.model_changer import without_paths

log = logging.getLogger(__name__)

# What and where a model is, how large it is, or a path: the operator's alone.
FIXED_KEYS = ("name", "replicas", "checkpoint", "random", "like")


class Fleet(Protocol):
    """The processes of a service."""

    def load(self, worker: str, entry: Entry) -> str:
        """Loads a model on a worker; returns why it failed, else nothing."""

    def unload(self, worker: str, index: int) -> None:
        """Frees a model on a worker; nothing happens where it is not loaded, or the worker is not there."""

    def update(self, roster: Roster, changed: Sequence[str] = (), finished: str = "") -> None:
        """Tells every frontend; see `Frontend.update`."""


class ModelControl:
    """Keeps the roster, in memory and in the run folder's file."""

    def __init__(self, folder: Path, roster: Roster, fleet: Fleet) -> None:
        """`roster` is what the workers load when they start."""
        self._folder = folder
        self._roster = roster
        self._configured = {entry.name: entry.config for entry in roster.entries}
        self._next_index = len(roster.entries)
        self._generations = {entry.name: entry.generation for entry in roster.entries}
        self._fleet = fleet
        self._changing = threading.Lock()

    @property
    def roster(self) -> Roster:
        """What is loaded now."""
        return self._roster

    def load(self, name: str, config: str | None = None) -> None:
        """Loads a model, or loads it again, with `config` (JSON) laid over its configuration.

        Raises:
            Refused: it could not be loaded; what was served before still is.
        """
        with self._changing:
            old = self._entry(name)
            wanted = overridden(self._configured[name], config)
            new = self._new_entry(old, wanted)
            self._note(old, old.state if old.is_loaded else "LOADING", "being loaded")
            if failures := self._load_everywhere(new):
                for worker in new.replicas:
                    self._fleet.unload(worker, new.index)
                reason = f"the last load failed: {'; '.join(failures)}"
                self._note(old, old.state if old.is_loaded else "UNAVAILABLE", reason)
                raise Refused(f"model '{name}' could not be loaded: {'; '.join(failures)}")
            self._commit(new)
            finished = old.key if old.is_loaded else ""
            self._fleet.update(self._roster, new.replicas, finished)
            if old.is_loaded:
                self._free(old)

    def unload(self, name: str) -> None:
        """Takes a model out, if it is loaded: accepted requests are answered, then its memory is freed.

        Raises:
            Refused: there is no such model.
        """
        with self._changing:
            old = self._entry(name)
            if not old.is_loaded:
                return
            self._commit(_with(old, is_loaded=False, state="UNLOADING", reason="being unloaded"))
            self._fleet.update(self._roster, (), old.key)
            self._free(old)
            self._note(_with(old, is_loaded=False), "UNAVAILABLE", "unloaded")

    def _entry(self, name: str) -> Entry:
        entry = self._roster.find(name)
        if entry is None:
            raise Refused(f"no model is named '{name}': only configured models can be loaded")
        return entry

    def _new_entry(self, old: Entry, config: ModelConfig) -> Entry:
        self._generations[old.name] += 1
        index = self._next_index
        self._next_index += 1
        return Entry(
            config=config,
            index=index,
            generation=self._generations[old.name],
            replicas=old.replicas,
        )

    def _load_everywhere(self, new: Entry) -> list[str]:
        failures = []
        for worker in new.replicas:
            if failure := self._fleet.load(worker, new):
                failures.append(f"{worker.removesuffix('.sock')}: {failure}")
                break
        return failures

    def _free(self, old: Entry) -> None:
        for worker in old.replicas:
            self._fleet.unload(worker, old.index)

    def _note(self, entry: Entry, state: State, reason: str) -> None:
        """Tells of a state; nothing else changes."""
        self._commit(_with(entry, state=state, reason=reason))
        self._fleet.update(self._roster)

    def _commit(self, entry: Entry) -> None:
        self._roster = self._roster.with_entry(entry)
        write_roster(self._folder, self._roster)


def overridden(configured: ModelConfig, override: str | None) -> ModelConfig:
    """The configured model with some keys replaced, checked as the file was.

    Raises:
        Refused: `override` is no JSON object, has a key that is not a request's to give, or breaks a rule.
    """
    if override is None or not override.strip():
        return configured
    try:
        given = json.loads(override, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise Refused(f"config is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refused("config must be a JSON object with the keys of a model")
    for key in FIXED_KEYS:
        if key in given:
            raise Refused(f"config: '{key}' cannot be given by a request")
    constants = given.get("constants")
    if isinstance(constants, dict):
        for name, value in constants.items():
            if isinstance(value, dict):
                raise Refused(f"config: constants.{name}: a request cannot name a file")
    try:
        return ModelConfig.model_validate({**configured.given(), **given})
    except (ValidationError, RecursionError) as error:
        text = readable(error) if isinstance(error, ValidationError) else "nested too deeply"
        raise Refused(f"config: {without_paths(configured, text)}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    given = dict(pairs)
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key {key!r} is given twice")
    return given


def _with(entry: Entry, **changes: Any) -> Entry:
    return entry.model_copy(update=changes)
