"""The CPU engine on real models: rows in a slot, answers beside them, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatefuse.config import Batching, ConfigError, ModelConfig, RandomWeights
from gatefuse.link.arena import Arena, SlotLayout
from gatefuse.link.messages import BatchMessage, DoneMessage, Status
from gatefuse.worker.engine.base import Ticket
from gatefuse.worker.engine.cpu import CpuEngine
from gatefuse.worker.engine.models import load_models
from gatefuse_kernels.plan import parse_table
from gatefuse_kernels.reference import mlp_reference
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.weights.random_weights import random_source

HIDDEN, INTERMEDIATE, LAYERS, SEED = 24, 40, 2, 3
RANDOM = RandomWeights(hidden=HIDDEN, intermediate=INTERMEDIATE, layers=LAYERS, seed=SEED)
MAX_ROWS = 9
TINY_LLAMA = Path(__file__).parents[4] / "tiny-llama"


def _config(name: str, **changes: Any) -> ModelConfig:
    batching = Batching(max_batch_rows=MAX_ROWS)
    fields = {"random": RANDOM, "dtype": DType.FP32, "batching": batching, **changes}
    return ModelConfig(name=name, **fields)


CONFIGS = (
    _config("fused", backend="fused"),
    _config("eager", backend="eager"),
    _config("scale", kind="elementwise", random=None, expression="x * 2 + 1", backend="eager"),
)


class Bench:
    """An engine and one arena of two slots."""

    def __init__(self) -> None:
        models = load_models(CONFIGS, torch.device("cpu"))
        self.engine = CpuEngine(models)
        self.arena = Arena.create(SlotLayout.for_regions(2, MAX_ROWS * 8192 * 4))
        self.engine.attach(self.arena)

    def run(
        self, model: int, x: np.ndarray, slot: int = 0, layer: int = 0
    ) -> tuple[np.ndarray, DoneMessage]:
        """One batch of float32 rows [M, C]; returns its output rows and message."""
        rows, columns = x.shape
        self.arena.input(slot)[: x.nbytes] = x.tobytes()
        message = BatchMessage(slot, model, layer, rows, columns, 77, 2**62)
        self.engine.submit(Ticket(message, self.arena, "peer", time.monotonic()))
        full = not self.engine.has_room
        [(ticket, done)] = self.engine.completed()
        assert (ticket.peer, ticket.message) == ("peer", message)
        assert full
        assert self.engine.has_room
        output = bytes(self.arena.output(slot)[: x.nbytes])
        return np.frombuffer(output, np.float32).reshape(rows, columns), done


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.engine.detach(bench.arena)
    bench.arena.close()
    # Nothing keeps the frontend's memory.
    assert bench.arena.map.closed


def _rows(rows: int, columns: int = HIDDEN) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def _reference(x: np.ndarray, layer: int) -> np.ndarray:
    source = random_source(HIDDEN, INTERMEDIATE, LAYERS, SEED)
    weights = source.load(layer, DType.FP32, torch.device("cpu"))
    result: np.ndarray = mlp_reference(torch.from_numpy(x.copy()), weights).numpy()
    return result


@pytest.mark.parametrize("model", [0, 1], ids=["fused", "eager"])
@pytest.mark.parametrize("rows", [1, 2, 7, MAX_ROWS])
def test_rows_go_through_the_right_layer(bench: Bench, model: int, rows: int) -> None:
    x = _rows(rows)
    for layer in range(LAYERS):
        output, done = bench.run(model, x, layer=layer)
        expected = _reference(x, layer)
        assert np.linalg.norm(output - expected) <= 1e-6 * np.linalg.norm(expected)
        assert (done.status, done.slot, done.batch_id) == (Status.OK, 0, 77)
        assert done.padded_rows == rows
        assert 0 < done.device_s <= done.inside_s
        assert sum(entry.launches for entry in done.entries) > 0


def test_an_elementwise_model_counts_its_kernels(bench: Bench) -> None:
    x = _rows(3, 5)
    output, done = bench.run(2, x)
    np.testing.assert_array_equal(output, x * 2 + 1)
    # Two kernels, each reading and writing 15 floats.
    assert sum(entry.launches for entry in done.entries) == 2
    assert sum(entry.read_bytes for entry in done.entries) == 2 * 60
    assert sum(entry.written_bytes for entry in done.entries) == 2 * 60


def test_each_batch_pays_for_itself(bench: Bench) -> None:
    first = bench.run(0, _rows(4))[1].entries
    assert bench.run(0, _rows(4))[1].entries == first
    bench.engine.warm_up()
    assert bench.run(0, _rows(4))[1].entries == first


def test_slots_do_not_touch_each_other(bench: Bench) -> None:
    x, other = _rows(5), _rows(9)
    expected, _ = bench.run(0, x, slot=0)
    bench.run(0, other, slot=1)
    kept = np.frombuffer(bytes(bench.arena.output(0)[: x.nbytes]), np.float32)
    np.testing.assert_array_equal(kept.reshape(x.shape), expected)


@pytest.mark.parametrize("model", [0, 1, 2], ids=lambda index: CONFIGS[index].name)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_row_stays_alone(bench: Bench, model: int, poison: float) -> None:
    x = _rows(6)
    clean, _ = bench.run(model, x)
    x[2] = poison
    poisoned, _ = bench.run(model, x)
    assert not np.isfinite(poisoned[2]).any()
    mates = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(poisoned[mates], clean[mates])


@pytest.mark.parametrize(
    "change",
    [
        {"model": 9},
        {"layer": 7},
        {"columns": HIDDEN + 1},
        {"rows": MAX_ROWS + 1},
        {"rows": 2**20},
        {"slot": 2},
    ],
    ids=str,
)
def test_a_batch_that_cannot_be_run_raises_and_the_next_one_runs(
    bench: Bench, change: dict[str, Any]
) -> None:
    message = BatchMessage(0, 0, 0, 1, HIDDEN, 1, 2**62)._replace(**change)
    with pytest.raises((LookupError, ValueError)):
        bench.engine.submit(Ticket(message, bench.arena, None, 0.0))
    assert bench.engine.completed() == []
    x = _rows(2)
    expected = _reference(x, 0)
    assert np.linalg.norm(bench.run(0, x)[0] - expected) <= 1e-6 * np.linalg.norm(expected)


def test_what_is_served_is_described(bench: Bench) -> None:
    fused, eager, scale = bench.engine.served
    assert [model.index for model in bench.engine.served] == [0, 1, 2]
    assert (fused.backend, eager.backend, scale.backend) == ("fused", "eager", "eager")
    assert (fused.layers, fused.columns, fused.intermediate) == ((0, 1), HIDDEN, INTERMEDIATE)
    assert fused.weights_id == eager.weights_id != ""
    assert (scale.columns, scale.max_columns, scale.weights_id) == (0, 8192, "")
    assert (fused.inputs, fused.outputs, fused.expression) == (("hidden_states",), ("output",), "")
    assert (scale.inputs, scale.outputs, scale.expression) == (("x",), ("y",), "x * 2 + 1")


def test_the_kernels_of_its_batches_are_known_after_the_warm_up(bench: Bench) -> None:
    assert [model.kernels for model in bench.engine.served] == [(), (), ()]
    bench.engine.warm_up()
    for model, x in ((0, _rows(4)), (1, _rows(4)), (2, _rows(3, 5))):
        launched = {(entry.kernel, entry.mode) for entry in bench.run(model, x)[1].entries}
        assert set(bench.engine.served[model].kernels) == launched
    later = load_models([_config("later", backend="eager")], torch.device("cpu"))[0]
    assert bench.engine.add(later).served.kernels == bench.engine.served[1].kernels


def test_a_deterministic_model_computes_a_row_the_same_in_any_batch() -> None:
    models = load_models([_config("ffn", deterministic=True)], torch.device("cpu"))
    assert "deterministic" in models[0].served.description
    assert models[0].graph_buckets == ()
    runner = models[0].runners[0]
    x = torch.from_numpy(_rows(MAX_ROWS))
    together, alone = torch.empty_like(x), torch.empty_like(x)
    runner([x], [together])
    for row in range(MAX_ROWS):
        runner([x[row : row + 1]], [alone[row : row + 1]])
    assert torch.equal(together, alone)


def test_a_plan_table_is_of_no_use_to_a_cpu() -> None:
    table = parse_table(
        '{"device": "NVIDIA Mine", "capability": [9, 0], "multiprocessors": 8, "entries": []}', "t"
    )
    load_models([_config("ffn")], torch.device("cpu"), table)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (_config("ffn", layers=(0, 5, 2)), "'ffn' asks for layers [2, 5]"),
        (
            ModelConfig(name="llama", kind="geglu", checkpoint=TINY_LLAMA),
            "'llama' is of kind geglu, but its checkpoint's config.json asks for the activation silu",
        ),
    ],
    ids=["layers", "kind"],
)
def test_a_model_that_its_weights_do_not_fit(config: ModelConfig, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_models([config], torch.device("cpu"))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        ("swiglu", Activation.SILU),
        ("geglu", Activation.GELU_TANH),
        ("reglu", Activation.RELU),
    ],
)
def test_random_weights_get_the_activation_of_their_kind(kind: str, activation: Activation) -> None:
    (model,) = load_models([_config("ffn", kind=kind)], torch.device("cpu"))
    x = torch.from_numpy(_rows(2))
    out = torch.empty_like(x)
    model.runners[0]([x], [out])
    source = replace(random_source(HIDDEN, INTERMEDIATE, LAYERS, SEED), activation=activation)
    weights = source.load(0, DType.FP32, torch.device("cpu"))
    torch.testing.assert_close(out.double(), mlp_reference(x, weights), rtol=1e-4, atol=1e-5)
