"""How each job is launched, on matrices whose memory is never touched."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.kernels.aot.jobs import Job

from gatefuse_kernels import dtypes
from gatefuse_kernels.swiglu.gate import launch_gate
from gatefuse_kernels.swiglu.launcher import Launcher
from gatefuse_kernels.swiglu.textbook import launch_textbook
from gatefuse_kernels.weights.packed import MlpWeights

_ROWS = 16


def _matrix(job: Job, columns: int, rows: int = _ROWS) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=dtypes.to_torch(job.dtype))


def _weights(job: Job) -> MlpWeights:
    hidden, intermediate = job.shape.hidden, job.shape.intermediate
    gate_up, down = _matrix(job, hidden, 2 * intermediate), _matrix(job, intermediate, hidden)
    return MlpWeights(gate_up, down, job.activation)


def _launcher(job: Job) -> Launcher:
    return Launcher(_weights(job), job.device)


def _gate_up(job: Job) -> None:
    assert job.tile is not None
    x, h = _matrix(job, job.shape.hidden), _matrix(job, job.shape.intermediate)
    _launcher(job).gate_up(x, h, job.tile, job.overlap)


def _down(job: Job) -> None:
    assert job.tile is not None
    h, out = _matrix(job, job.shape.intermediate), _matrix(job, job.shape.hidden)
    _launcher(job).down(h, out, job.tile, job.overlap)


def _textbook(job: Job) -> None:
    assert job.tile is not None
    x = _matrix(job, job.shape.hidden)
    launch_textbook(x, _weights(job), torch.empty_like(x), job.tile)


def _gate(job: Job) -> None:
    intermediate = job.shape.intermediate
    if job.merged:
        gate, up = _matrix(job, 2 * intermediate).chunk(2, dim=1)
    else:
        gate, up = _matrix(job, intermediate), _matrix(job, intermediate)
    launch_gate(gate, up, _matrix(job, intermediate), job.activation, job.rounding)


LAUNCHES: dict[str, Callable[[Job], None]] = {
    "gate_up": _gate_up,
    "down": _down,
    "textbook": _textbook,
    "gate": _gate,
}
