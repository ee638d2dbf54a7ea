"""Models that come to a GPU's engine and go, beside its batches."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gatefuse.config import Batching, ModelConfig, RandomWeights
from gatefuse.link.arena import Arena, SlotLayout
from gatefuse.link.messages import BatchMessage
from gatefuse.wire import Datatype, decode, encode
from gatefuse.worker.engine.base import Ticket
from gatefuse.worker.engine.cuda import CudaEngine
from gatefuse.worker.engine.models import ModelLoader
from gatefuse_kernels.error_limits import FUSED_ERROR_LIMIT
from gatefuse_kernels.reference import mlp_reference
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.random_weights import random_source

pytestmark = pytest.mark.gpu

HIDDEN = 512
ROWS = 7


def _config(name: str, backend: str, intermediate: int) -> ModelConfig:
    return ModelConfig(
        name=name,
        random=RandomWeights(hidden=HIDDEN, intermediate=intermediate, layers=2, seed=3),
        backend=backend,  # type: ignore[arg-type]
        batching=Batching(max_batch_rows=64),
    )


class Bench:
    """An engine that serves one model of eager products, which use the library's workspace."""

    def __init__(self) -> None:
        self.loader = ModelLoader(torch.device("cuda:0"))
        self.engine = CudaEngine([self.loader.load(_config("first", "eager", 1024), 0)])
        self.engine.warm_up()
        largest = max(model.region_bytes for model in self.engine.served)
        self.arena = Arena.create(SlotLayout.for_regions(2, largest))
        self.engine.attach(self.arena)
        self.launched: set[tuple[str, str]] = set()
        self.x = np.random.default_rng(0).standard_normal((ROWS, HIDDEN)).astype(np.float32)

    def run(self, index: int, layer: int) -> np.ndarray:
        packed = encode(self.x, Datatype.BF16)
        self.arena.input(0)[: len(packed)] = packed
        message = BatchMessage(0, index, layer, ROWS, HIDDEN, 1, 2**62)
        self.engine.submit(Ticket(message, self.arena, "peer", time.monotonic()))
        while not (done := self.engine.completed()):
            pass
        self.launched = {(entry.kernel, entry.mode) for entry in done[0][1].entries}
        assert self.launched
        return decode(bytes(self.arena.output(0)[: len(packed)]), Datatype.BF16, self.x.shape)

    def is_right(self, answer: np.ndarray, intermediate: int, layer: int) -> bool:
        weights = random_source(HIDDEN, intermediate, 2, 3).load(
            layer, DType.BF16, torch.device("cpu")
        )
        rounded = torch.from_numpy(self.x).bfloat16()
        exact = mlp_reference(rounded, weights).double().numpy()
        return bool(
            np.linalg.norm(answer - exact)
            <= 3 * FUSED_ERROR_LIMIT[DType.BF16] * np.linalg.norm(exact)
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.detach(made.arena)


def test_a_model_is_added_beside_batches_whose_answers_stay_right(bench: Bench) -> None:
    expected = [bench.run(0, layer) for layer in range(2)]
    assert all(bench.is_right(expected[layer], 1024, layer) for layer in range(2))
    installs = []

    def add() -> None:
        for index, backend in ((4, "eager"), (5, "fused"), (6, "eager")):
            model = bench.loader.load(_config("later", backend, 256 * index), index, index)
            installs.append(bench.engine.add(model))

    thread = threading.Thread(target=add)
    thread.start()
    batches = 0
    while thread.is_alive():
        np.testing.assert_array_equal(bench.run(0, batches % 2), expected[batches % 2])
        batches += 1
    thread.join()
    assert batches > 3
    for added in installs:
        added.begin()
    for index in (4, 5, 6):
        for layer in range(2):
            assert bench.is_right(bench.run(index, layer), 256 * index, layer)
    np.testing.assert_array_equal(bench.run(0, 0), expected[0])


def test_kernels_are_known_as_parts_of_graphs(bench: Bench) -> None:
    (served,) = bench.engine.served
    assert served.kernels
    assert {mode for _, mode in served.kernels} == {"graph"}
    bench.run(0, 0)
    assert set(served.kernels) == bench.launched


def test_memory_is_free_when_a_model_is_gone(bench: Bench) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    bench.engine.add(bench.loader.load(_config("later", "fused", 8192), 9, 1)).begin()
    held = torch.cuda.memory_allocated()
    assert held > before + 2 * 3 * HIDDEN * 8192 * 2
    bench.run(9, 1)
    bench.engine.remove(9)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() < before + (held - before) / 4
