"""What the leading process and the sending processes say to each other: one line of JSON each."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gatefuse.commands.loadtest.checks import Errors
from gatefuse.commands.loadtest.plan import Load
from gatefuse_kernels.expression import Program, parse_program


class LoadTestError(Exception):
    """The load test cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where rows come from: a safetensors file, or random numbers of ``columns`` for a server's ``layers``.

    A model's inputs are side by side in a row, ``inputs`` of them, and its outputs in an answer.
    """

    columns: int
    layers: list[int] | None
    inputs: int = 1
    outputs: int = 1
    path: str = ""
    exact: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """What holds for the whole test."""

    url: str
    source: SourceSpec
    datatype: str
    timeout_s: float
    connections: int
    part: int
    parts: int
    max_outstanding: int
    seed: int


@dataclass(frozen=True, slots=True)
class Target:
    """What has to be known of a model to send it requests, and to know the right answers.

    ``expression`` is empty where the right answers cannot be computed from it.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    backend: str
    dtype: str
    is_first: bool
    expression: str = ""
    constants: dict[str, float] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The parsed expression."""
        return parse_program(self.expression, self.constants, outputs=self.outputs)


@dataclass(frozen=True, slots=True)
class CellJob:
    """One process' part of a cell; ``load`` is the whole cell's."""

    target: Target
    rows: int
    load: Load
    warm_up_s: float
    seconds: float
    row_gate: float | None

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Makes one from JSON."""
        return cls(
            **{**fields, "target": Target(**fields["target"]), "load": Load(**fields["load"])}
        )


@dataclass(slots=True)
class CellReport:
    """What one process saw of a cell; the latencies are those of answers inside the measured time."""

    latencies_s: NDArray[np.float64]
    errors: dict[str, int] = field(default_factory=dict)
    error_text: str = ""
    unsent: int = 0
    malformed: int = 0
    answers: Errors = field(default_factory=Errors)
    versus_first: Errors = field(default_factory=Errors)
    costed: int = 0
    batches: float = 0.0
    launches: float = 0.0
    bytes_moved: float = 0.0
    queue_us: int = 0
    compute_us: int = 0
    backends: list[str] = field(default_factory=list)
    busy: float = 0.0
    lag_p99_s: float = 0.0

    def to_fields(self) -> dict[str, Any]:
        """Returns what JSON can hold."""
        fields = asdict(self)
        packed = np.ascontiguousarray(self.latencies_s, "<f8").tobytes()
        fields["latencies_s"] = base64.b64encode(packed).decode()
        return fields

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Makes one from JSON."""
        packed = base64.b64decode(fields["latencies_s"])
        return cls(
            **{
                **fields,
                "latencies_s": np.frombuffer(packed, "<f8"),
                "answers": Errors(**fields["answers"]),
                "versus_first": Errors(**fields["versus_first"]),
            }
        )


def to_line(fields: dict[str, Any]) -> bytes:
    """Returns one message."""
    return json.dumps(fields).encode() + b"\n"


def setup_of(fields: dict[str, Any]) -> Setup:
    """Makes a setup from JSON."""
    return Setup(**{**fields, "source": SourceSpec(**fields["source"])})
