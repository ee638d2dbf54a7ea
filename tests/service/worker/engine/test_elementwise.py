"""The CPU engine on elementwise models: several tensors in a slot, vectors from files, what is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from gatefuse.config import ConfigError, ModelConfig, parse_config
from gatefuse.link.arena import Arena, SlotLayout, tensor_stride
from gatefuse.link.messages import BatchMessage, DoneMessage
from gatefuse.worker.engine.base import Ticket
from gatefuse.worker.engine.cpu import CpuEngine
from gatefuse.worker.engine.models import load_models

# torch.compile warns of torch's own files when it first imports them.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)

MAX_ROWS, MAX_COLUMNS = 9, 40
Array = NDArray[np.float32]
BACKENDS = ("fused", "eager")
CPU = torch.device("cpu")


def _config(folder: Path, name: str, expression: str, **keys: Any) -> ModelConfig:
    raw = {
        "name": name,
        "kind": "elementwise",
        "expression": expression,
        "dtype": "fp32",
        "max_columns": MAX_COLUMNS,
        "batching": {"max_batch_rows": MAX_ROWS},
        **keys,
    }
    return parse_config({"models": [raw]}, folder).models[0]


class Bench:
    """An engine and one arena of two slots that fit its models exactly."""

    def __init__(self, *configs: ModelConfig) -> None:
        self.engine = CpuEngine(load_models(configs, CPU))
        largest = max(model.region_bytes for model in self.engine.served)
        self.arena = Arena.create(SlotLayout.for_regions(2, largest))
        self.engine.attach(self.arena)

    def run(self, model: int, *inputs: Array, slot: int = 0) -> tuple[list[Array], DoneMessage]:
        """One batch of inputs [M, C] each; returns the outputs."""
        rows, columns = inputs[0].shape
        stride = tensor_stride(rows, columns * 4)
        region = self.arena.input(slot)
        for number, x in enumerate(inputs):
            region[number * stride :][: x.nbytes] = x.tobytes()
        message = BatchMessage(slot, model, 0, rows, columns, 77, 2**62)
        self.engine.submit(Ticket(message, self.arena, None, time.monotonic()))
        [(_, done)] = self.engine.completed()
        answers = bytes(self.arena.output(slot))
        outputs = [
            np.frombuffer(answers, np.float32, rows * columns, number * stride).reshape(
                rows, columns
            )
            for number in range(len(self.engine.served[model].outputs))
        ]
        return outputs, done

    def close(self) -> None:
        self.engine.detach(self.arena)
        self.arena.close()
        assert self.arena.map.closed


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    text = "t = g - 1; y = t * u"
    bench = Bench(
        *(_config(Path(), name, text, outputs=["y", "t"], backend=name) for name in BACKENDS)
    )
    yield bench
    bench.close()


def _rows(seed: int, rows: int, columns: int) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("model", [0, 1], ids=BACKENDS)
@pytest.mark.parametrize("rows", [1, 2, 7, MAX_ROWS])
@pytest.mark.parametrize("columns", [1, 5, 33, MAX_COLUMNS])
def test_each_tensor_has_its_place(bench: Bench, model: int, rows: int, columns: int) -> None:
    g, u = _rows(rows, rows, columns), _rows(columns + 100, rows, columns)
    (y, t), done = bench.run(model, g, u)
    np.testing.assert_array_equal(t, g - 1)
    np.testing.assert_array_equal(y, (g - 1) * u)
    assert done.padded_rows == rows


def test_slots_and_sizes_do_not_touch_each_other(bench: Bench) -> None:
    g, u = _rows(0, 5, 7), _rows(1, 5, 7)
    bench.run(0, g, u, slot=0)
    before = bytes(bench.arena.output(0))
    bench.run(0, _rows(2, MAX_ROWS, MAX_COLUMNS), _rows(3, MAX_ROWS, MAX_COLUMNS), slot=1)
    assert bytes(bench.arena.output(0)) == before


def test_what_is_counted(bench: Bench) -> None:
    rows, columns = 3, 5
    tensor_bytes = rows * columns * 4
    inputs = (_rows(0, rows, columns), _rows(1, rows, columns))
    fused, eager = (bench.run(model, *inputs)[1].entries for model in (0, 1))
    # One pass reads g and u and writes y and t; an op at a time reads t again.
    assert sum(entry.launches for entry in fused) == 1
    assert sum(entry.read_bytes for entry in fused) == 2 * tensor_bytes
    assert sum(entry.written_bytes for entry in fused) == 2 * tensor_bytes
    assert sum(entry.launches for entry in eager) == 2
    assert sum(entry.read_bytes for entry in eager) == 3 * tensor_bytes
    assert sum(entry.written_bytes for entry in eager) == 2 * tensor_bytes
    assert bench.run(0, *inputs)[1].entries == fused


def test_a_batch_that_is_too_large_raises_and_the_next_one_runs(bench: Bench) -> None:
    message = BatchMessage(0, 0, 0, MAX_ROWS + 1, MAX_COLUMNS, 1, 2**62)
    with pytest.raises(ValueError, match=r"rows|length"):
        bench.engine.submit(Ticket(message, bench.arena, None, 0.0))
    assert bench.engine.completed() == []
    g = _rows(0, 2, 3)
    assert np.array_equal(bench.run(0, g, g)[0][1], g - 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_come_from_lists_and_files(tmp_path: Path, backend: str) -> None:
    scale, bias = torch.tensor([1.5, -2, 0.25]), torch.tensor([4.0, 8, -1])
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        save_file({"bias": bias.to(dtype), "other": scale}, tmp_path / "v.safetensors")
        constants = {
            "scale": scale.tolist(),
            "bias": {"file": "v.safetensors", "tensor": "bias"},
            "two": 2,
        }
        config = _config(
            tmp_path, "m", "x * scale + bias * two", constants=constants, backend=backend
        )
        bench = Bench(config)
        (served,) = bench.engine.served
        assert (served.columns, served.max_columns, served.inputs) == (3, 3, ("x",))
        assert served.constants == (("two", 2.0), ("scale", None), ("bias", None))
        x = _rows(0, 4, 3).round(1)
        (y,), _ = bench.run(0, x)
        np.testing.assert_allclose(y, x * scale.numpy() + 2 * bias.numpy(), rtol=1e-6)
        bench.close()


def test_a_file_that_changed_since_the_configuration_was_read(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(3)}, path)
    constants = {name: {"file": path.name, "tensor": name} for name in ("a", "b")}
    config = _config(tmp_path, "m", "x * a + b", constants=constants)
    changes = [
        ({"a": torch.ones(3), "b": torch.ones(3).long()}, "holds I64"),
        ({"a": torch.ones(3), "b": torch.ones(4)}, "has 4 values, but constants.a says 3"),
        ({"a": torch.ones(3)}, "has no tensor 'b'"),
    ]
    for tensors, text in changes:
        save_file(tensors, path)
        with pytest.raises(ConfigError) as caught:
            load_models([config], CPU)
        assert str(caught.value).startswith("model 'm': constants.b")
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "shapes"),
    [
        ({}, ((1, 1), (1, MAX_COLUMNS), (MAX_ROWS, 1), (MAX_ROWS, MAX_COLUMNS))),
        ({"columns": 5}, ((1, 5), (MAX_ROWS, 5))),
    ],
    ids=["any width", "one width"],
)
def test_a_single_row_and_a_single_column_are_warmed_up(
    keys: dict[str, Any], shapes: tuple[tuple[int, int], ...]
) -> None:
    config = _config(Path(), "m", "x * 2", backend="eager", **keys)
    (model,) = load_models([config], CPU)
    assert model.warm_up_shapes == shapes
    CpuEngine([model]).warm_up()
    assert model.ledger.drain() == []


def test_no_request_waits_for_a_compiler() -> None:
    """After the warm-up no shape that a request may have is compiled again."""
    text = "y = g * u; z = g - u"
    bench = Bench(_config(Path(), "m", text, backend="fused"))
    bench.engine.warm_up()
    with torch.compiler.set_stance("fail_on_recompile"):
        for shape in ((1, 1), (1, 2), (1, 7), (2, 1), (3, 5), (MAX_ROWS, MAX_COLUMNS)):
            g = _rows(0, *shape)
            (y, z), _ = bench.run(0, g, g, slot=1)
            np.testing.assert_array_equal(y, g * g)
            np.testing.assert_array_equal(z, 0 * g)
    bench.close()
