"""The time that this machine's GPU takes, beside the predicted one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.bench.capture import capture_call
from gatefuse_kernels.bench.copies import Copy, copies_for, weight_copies
from gatefuse_kernels.bench.timing import Pace, take_turns
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.explain.results import Explanation, Point
from gatefuse_kernels.expression import Program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import DeviceProfile
from gatefuse_kernels.shapes import MlpShape

_PACE = Pace(rounds=100)
_TIMES_L2 = 4
"""Tensors so much larger than L2 leave nothing there for the next call."""


def gpu_profile() -> DeviceProfile | None:
    """The profile of this machine's first GPU, if it has one."""
    return profile_of(torch.device("cuda", 0)) if torch.cuda.is_available() else None


def measure_mlp(shape: MlpShape, explanation: Explanation) -> Explanation:
    """Time every backend at every row count: CUDA-graph replays, weights rotated past L2."""
    copies = weight_copies(shape, explanation.dtype, torch.device("cuda", 0))
    points = (_measure_mlp_at(copies, point) for point in explanation.points)
    return replace(explanation, points=tuple(points))


def _measure_mlp_at(copies: Sequence[Copy], point: Point) -> Point:
    like = copies[0].weights.down
    x = torch.randn(point.rows, like.shape[0], device=like.device).to(like.dtype)
    out = torch.empty_like(x)

    def calls(backend: str) -> list[Callable[[], object]]:
        mlps = (
            build_mlp(backend, copy.weights, ledger=Ledger(), max_rows=point.rows)
            for copy in copies
        )
        return [capture_call(partial(mlp, x, out)) for mlp in mlps]

    return timed(point, calls)


def measure_program(program: Program, explanation: Explanation) -> Explanation:
    """Time every backend: CUDA-graph replays over tensors that L2 cannot hold."""
    (point,) = explanation.points
    device = torch.device("cuda", 0)
    l2_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
    moved = point.form("fused").bytes_moved
    sets = 1 if moved > _TIMES_L2 * l2_bytes else copies_for(moved, l2_bytes)

    def normal(*shape: int) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtypes.to_torch(explanation.dtype), device=device)
        return made.normal_()

    shape = shape_of(program, point)
    inputs = [[normal(*shape) for _ in program.inputs] for _ in range(sets)]
    outputs = [[normal(*shape) for _ in program.outputs] for _ in range(sets)]
    vectors = {name: normal(point.columns) for name in program.vectors}

    def calls(backend: str) -> list[Callable[[], object]]:
        runner = build_elementwise(
            backend,
            program,
            vectors=vectors,
            ledger=Ledger(),
            dtype=explanation.dtype,
            device=device,
            max_rows=shape[0],
            columns=point.columns if program.vectors else None,
        )
        return [
            capture_call(partial(runner, *tensors)) for tensors in zip(inputs, outputs, strict=True)
        ]

    return replace(explanation, points=(timed(point, calls),))


def shape_of(program: Program, point: Point) -> tuple[int, int]:
    """M and C of the tensors that are timed.

    A point without per-column constants may say one column, and rows without end: there only the number
    of elements matters, and a single row has no limit.
    """
    return (point.rows, point.columns) if program.vectors else (1, point.elements)


def timed(point: Point, calls: Callable[[str], list[Callable[[], object]]]) -> Point:
    """The point with the time of each form that runs.

    Args:
        point: what was predicted.
        calls: by backend, the form's calls, which differ only in the memory they read.
    """
    backends = [form.backend for form in point.forms if form.backend != "ideal"]
    spreads = take_turns([calls(backend) for backend in backends], _PACE)
    times = dict(zip(backends, spreads, strict=True))
    forms = (replace(form, measured=times.get(form.backend)) for form in point.forms)
    return replace(point, forms=tuple(forms))
