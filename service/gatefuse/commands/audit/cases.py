"""What is asked of each model of a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from safetensors import safe_open

from gatefuse.config import ModelConfig, Vector
from gatefuse.worker.engine.models import ACTIVATIONS
from gatefuse_kernels.audit.cases import Case, MlpCase, ProgramCase
from gatefuse_kernels.shapes import MAX_ROWS, MlpShape
from gatefuse_kernels.weights.hf_config import read_config

_BUCKET_STEP = 16
_STEPS_A_DOUBLING = 64
_L2_TIMES = 32
_FREE_COLUMNS = 4096
"""Of a program whose columns nobody fixed."""


def request_rows(max_batch_rows: int) -> tuple[int, ...]:
    """Row counts of requests that between them replay every graph and meet every plan.

    Graphs are captured at multiples of 16, at powers of two and at the largest batch; one request is
    larger than any batch, and some lie just above a power of two.
    """
    counts = {1, 2, 3, max_batch_rows, max_batch_rows + max_batch_rows // 5 + 1}
    rows = _BUCKET_STEP
    while rows < max_batch_rows:
        counts.add(rows)
        # Graphs lie at least some percent apart.
        rows += max(1, rows // (_STEPS_A_DOUBLING * _BUCKET_STEP)) * _BUCKET_STEP
    power = 1
    while power < max_batch_rows:
        counts.update((power, power + 1))
        power *= 2
    return tuple(sorted(counts))


def byte_cases(
    models: Sequence[ModelConfig], rows: Sequence[int], elements: int | None, l2_bytes: int
) -> tuple[Case, ...]:
    """What the counters look at: MLPs at `rows`, programs at `elements` and at their largest batch.

    Args:
        models: of the configuration.
        rows: of MLPs, those above a model's largest batch left out, and with all of them the model; none
            for every graph's.
        elements: of each tensor of a program; None for as many as fill L2 32 times. What a kernel wrote last is
            still there when it ends and does not count as written: so it is a thirtieth at most.
        l2_bytes: of the device.
    """
    return tuple(
        _mlp(model, rows)
        if model.is_mlp
        else _program(model, elements or _L2_TIMES * l2_bytes // model.dtype.itemsize)
        for model in models
        # An MLP without row counts would stand for all of its graphs, which is not what was asked.
        if not (model.is_mlp and rows and min(rows) > model.batching.max_batch_rows)
    )


def _backend(model: ModelConfig) -> str:
    return "fused" if model.backend == "auto" else model.backend


def _mlp(model: ModelConfig, rows: Sequence[int]) -> MlpCase:
    most = model.batching.max_batch_rows
    return MlpCase(
        model=model.name,
        backend=_backend(model),
        dtype=model.dtype,
        shape=_shape(model),
        activation=ACTIVATIONS[model.kind][-1],
        max_rows=most,
        deterministic=model.deterministic,
        rows=tuple(count for count in rows if count <= most),
    )


def _shape(model: ModelConfig) -> MlpShape:
    if model.random is not None:
        return MlpShape(model.random.hidden, model.random.intermediate)
    assert model.checkpoint is not None
    config = read_config(model.checkpoint / "config.json")
    if config.hidden is None or config.intermediate is None:
        raise ValueError(f"{model.checkpoint}: config.json does not name both widths")
    return MlpShape(config.hidden, config.intermediate)


def _program(model: ModelConfig, elements: int) -> ProgramCase:
    assert model.expression is not None
    columns = _columns(model)
    rows = {min(max(1, elements // columns), MAX_ROWS), model.batching.max_batch_rows}
    return ProgramCase(
        model=model.name,
        backend=_backend(model),
        dtype=model.dtype,
        text=model.expression,
        scalars=tuple(model.scalars.items()),
        vectors=tuple(model.vectors),
        outputs=model.outputs,
        columns=columns,
        rows=tuple(sorted(rows)),
    )


def _columns(model: ModelConfig) -> int:
    if model.columns is not None:
        return model.columns
    for vector in model.vectors.values():
        return _length(vector)
    return min(model.max_columns, _FREE_COLUMNS)


def _length(vector: Vector) -> int:
    """Of a file only the header is read."""
    if isinstance(vector, tuple):
        return len(vector)
    with safe_open(str(vector.file), framework="np") as file:
        length: int = file.get_slice(vector.tensor).get_shape()[0]
        return length
