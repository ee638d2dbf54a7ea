"""What is loaded now: written by the driver into the run folder, read by every process that starts later."""

import os
from pathlib import Path
from typing import Literal

from gatefuse.config import ModelConfig, Strict
from gatefuse.link.served_model import load_key

FILE_NAME = "roster.json"

State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class Entry(Strict):
    """One configured model.

    `index` is the number of its present load, never used again; `generation` counts its earlier loads. `is_loaded`
    says whether requests get it: a model that is being unloaded has workers that hold it, and takes no requests.
    `replicas` are the workers it is placed on, by the names of their sockets.
    """

    config: ModelConfig
    index: int
    generation: int = 0
    is_loaded: bool = True
    state: State = "READY"
    reason: str = ""
    replicas: tuple[str, ...]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.config.name

    @property
    def key(self) -> str:
        """What rows of this load are queued under."""
        return load_key(self.name, self.generation)


class Roster(Strict):
    """Every configured model, in the order of the configuration."""

    entries: tuple[Entry, ...]

    def find(self, name: str) -> Entry | None:
        """The model of that name."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def on_worker(self, socket_name: str) -> tuple[Entry, ...]:
        """What a worker that starts now loads."""
        return tuple(
            entry for entry in self.entries if entry.is_loaded and socket_name in entry.replicas
        )

    def with_entry(self, new: Entry) -> "Roster":
        """The same with one model's entry replaced."""
        entries = tuple(new if entry.name == new.name else entry for entry in self.entries)
        return Roster(entries=entries)


def write_roster(folder: Path, roster: Roster) -> None:
    """Replaces the file as a whole."""
    partial = folder / f"{FILE_NAME}.partial"
    partial.write_text(roster.model_dump_json(), encoding="utf-8")
    os.replace(partial, folder / FILE_NAME)


def read_roster(folder: Path) -> Roster | None:
    """What is loaded; None where models do not change, and every process keeps to its own configuration."""
    try:
        text = (folder / FILE_NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return Roster.read_again(text)
