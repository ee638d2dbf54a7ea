"""Which rows are sent and, if a file knows it, what has to come back. Pure but for reading the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatefuse.commands.loadtest.tensors import TensorFile

_INPUT = re.compile(r"layer\.(\d+)\.input")
# Rows that a server has to answer one at a time if no file knows the exact answers: a second or two
# of work.
MAX_PROBES = 256
MIN_ROWS = 8


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rows for one layer, and the exact answers if they are known.

    ``inputs`` [T, N * columns] holds a model's N inputs side by side, ``exact`` its outputs.
    """

    layer: int | None
    inputs: NDArray[np.float32]
    exact: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """One request: ``indices`` [M] are rows of the source's table number ``table``."""

    table: int
    indices: NDArray[np.intp]


def random_tables(columns: int, layers: Sequence[int | None], seed: int) -> tuple[LayerRows, ...]:
    """Returns rows of standard normal numbers, different for each layer."""
    count = max(MIN_ROWS, MAX_PROBES // len(layers))
    generator = np.random.default_rng(seed)
    return tuple(
        LayerRows(layer, generator.standard_normal((count, columns), np.float32))
        for layer in layers
    )


def file_tables(path: Path, *, exact: bool, layers: Sequence[int] | None) -> tuple[LayerRows, ...]:
    """Returns the rows of tensors ``layer.N.input`` and, if ``exact``, the answers ``layer.N.output_f64``.

    Args:
        path: A safetensors file.
        exact: Whether the answers must be there.
        layers: Which layers; None for all of the file's.

    Raises:
        ValueError: A tensor is missing or has the wrong shape; names the file.
    """
    file = TensorFile(path)
    found = sorted(int(match[1]) for name in file if (match := _INPUT.fullmatch(name)))
    wanted = found if layers is None else list(layers)
    missing = sorted(set(wanted) - set(found))
    if not wanted or missing:
        raise ValueError(f"{path} has no rows for layers {missing or 'at all'}: it has {found}")
    tables = tuple(_file_table(file, path, layer, exact=exact) for layer in wanted)
    if exact:
        return tables
    count = max(MIN_ROWS, MAX_PROBES // len(tables))
    return tuple(replace(table, inputs=table.inputs[:count]) for table in tables)


def draw_requests(
    tables: Sequence[LayerRows], rows: int, count: int, seed: int
) -> tuple[Draw, ...]:
    """Returns ``count`` requests of ``rows`` rows each, drawn at random, for the layers in turn.

    A request holds a row twice only if there are not enough of them. As every row has an answer of
    its own, an answer whose rows changed places is wrong.
    """
    generator = np.random.default_rng([seed, rows])
    draws = []
    for number in range(count):
        table = number % len(tables)
        available = len(tables[table].inputs)
        indices = generator.choice(available, rows, replace=rows > available)
        draws.append(Draw(table, indices.astype(np.intp)))
    return tuple(draws)


def _file_table(file: TensorFile, path: Path, layer: int, *, exact: bool) -> LayerRows:
    inputs = _matrix(file, path, f"layer.{layer}.input").astype(np.float32)
    if not exact:
        return LayerRows(layer, inputs)
    answers = _matrix(file, path, f"layer.{layer}.output_f64").astype(np.float64)
    if answers.shape != inputs.shape:
        raise ValueError(
            f"{path}: layer {layer} has inputs {list(inputs.shape)}, answers {list(answers.shape)}"
        )
    return LayerRows(layer, inputs, answers)


def _matrix(file: TensorFile, path: Path, name: str) -> NDArray[Any]:
    if name not in file:
        raise ValueError(f"{path} has no tensor {name!r}")
    tensor = file[name]
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(f"{path}: {name!r} has shape {list(tensor.shape)}, not [rows, columns]")
    return tensor
