"""The kernels on a real GPU: answers, graphs, launches counted against torch.profiler."""

from __future__ import annotations

import math

import pytest
import torch

import gatefuse_kernels
from gatefuse_kernels import dtypes, reference
from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.expression import parse_expression
from gatefuse_kernels.graphs import GraphedMlp
from gatefuse_kernels.launches import captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.packed import MlpWeights
from gatefuse_kernels.shapes import Activation, DType, row_buckets
from gatefuse_kernels.weights import random_source

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]

BACKENDS = ("fused", "eager", "compiled")
CUDA = "cuda:0"


def make_weights(
    hidden: int,
    intermediate: int,
    dtype: DType = DType.BF16,
    activation: Activation = Activation.SILU,
    device: str = CUDA,
) -> MlpWeights:
    source = random_source(hidden, intermediate, 1, 0)
    weights = source.load(0, dtype, torch.device(device))
    return MlpWeights(weights.gate_up, weights.down, activation)


@pytest.fixture(scope="module", params=list(DType))
def llama(request: pytest.FixtureRequest) -> MlpWeights:
    return make_weights(4096, 14336, request.param)


def make_rows(rows: int, weights: MlpWeights) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, weights.shape.hidden, generator=generator)
    return x.to(weights.device, weights.down.dtype)


def call(mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
    """The answer, written into NaN."""
    out = torch.full_like(x, math.nan)
    mlp(x, out)
    return out


def kernels_run(profile: torch.profiler.profile) -> list[str]:
    """Names of the kernels on the device's timeline; copies and memsets are not kernels."""
    return [
        event.name
        for event in profile.events()
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    ]


def profiled(*work: object) -> list[str]:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for step in work:
            assert callable(step)
            step()
        torch.cuda.synchronize()
    return kernels_run(profile)


def counted(ledger: Ledger) -> int:
    return sum(entry.launches for entry in ledger.drain())


@pytest.mark.parametrize("rows", [1, 16, 64, 256, 1000])
def test_accuracy_at_full_size(llama: MlpWeights, rows: int) -> None:
    x = make_rows(rows, llama)
    answer = call(build_mlp("fused", llama, ledger=Ledger(), max_rows=rows), x)
    accuracy = reference.measure_accuracy(answer, x, llama)
    assert accuracy.is_fused_grade, accuracy


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("shape", [(1000, 2072), (37, 101), (256, 688), (130, 1000)], ids=str)
@pytest.mark.parametrize("dtype", DType)
def test_accuracy_at_odd_sizes(
    dtype: DType, shape: tuple[int, int], activation: Activation
) -> None:
    weights = make_weights(*shape, dtype, activation)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=600)
    for rows in (1, 3, 17, 33, 65, 130, 600):
        x = make_rows(rows, weights)
        accuracy = reference.measure_accuracy(call(mlp, x), x, weights)
        assert accuracy.is_fused_grade, (rows, accuracy)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows(backend: str) -> None:
    weights = make_weights(256, 688)
    ledger = Ledger()
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=4)
    x = make_rows(0, weights)
    assert profiled(lambda: mlp(x, torch.empty_like(x))) == []
    assert ledger.drain() == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_direct_launches_equal_the_profilers(backend: str, dtype: DType) -> None:
    """At bucket and odd row counts; 4096x14336 is where cuBLAS splits its products."""
    weights = make_weights(4096, 14336, dtype)
    ledger = Ledger()
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=70)
    mlp.warm_up()
    for rows in (1, 3, 16, 64, 70):
        x = make_rows(rows, weights)
        out = torch.empty_like(x)
        names = profiled(lambda x=x, out=out: mlp(x, out))
        assert counted(ledger) == len(names), (rows, names)


def test_a_row_count_that_warm_up_did_not_see() -> None:
    """Its first call measures, too: by a capture, which must run nothing beside the five ops."""
    weights = make_weights(4096, 14336)
    ledger = Ledger()
    mlp = build_mlp("eager", weights, ledger=ledger, max_rows=1000)
    mlp.warm_up()
    x = make_rows(777, weights)
    out = torch.empty_like(x)
    names = profiled(lambda: mlp(x, out), lambda: mlp(x, out))
    assert counted(ledger) == len(names), names


def test_a_capture_runs_nothing() -> None:
    x = torch.zeros(8, 8, device=CUDA)

    def work() -> None:
        x.add_(1)

    work()
    captured: list[str] = []
    assert profiled(lambda: captured.extend(captured_kernels(work))) == []
    assert len(captured) == 1
    assert x.eq(1).all()


def make_graphs(
    backend: str, weights: MlpWeights, max_rows: int, ledger: Ledger
) -> tuple[GraphedMlp, Mlp, torch.Tensor, torch.Tensor]:
    mlp = build_mlp(backend, weights, ledger=ledger, max_rows=max_rows)
    like = weights.down
    x_buffer = torch.zeros(max_rows, like.shape[0], dtype=like.dtype, device=like.device)
    out_buffer = torch.full_like(x_buffer, math.nan)
    pool = torch.cuda.graph_pool_handle()
    buckets = row_buckets(max_rows)
    graphs = GraphedMlp(mlp, x_buffer, out_buffer, buckets, ledger, pool)
    graphs.capture()
    return graphs, mlp, x_buffer, out_buffer


@pytest.mark.parametrize("backend", BACKENDS)
def test_replays_equal_direct_launches_and_the_profiler(backend: str) -> None:
    weights = make_weights(4096, 14336)
    ledger = Ledger()
    graphs, mlp, x_buffer, out_buffer = make_graphs(backend, weights, 64, ledger)
    assert ledger.drain() == [], "warming up and capturing are not executions"
    for rows in (1, 5, 16, 64):
        bucket = graphs.bucket_for(rows)
        x = make_rows(rows, weights)
        x_buffer[:rows].copy_(x)
        x_buffer[rows:bucket].zero_()
        direct = call(mlp, x_buffer[:bucket].clone())
        ledger.drain()
        out_buffer.fill_(math.nan)
        names = profiled(lambda bucket=bucket: graphs.replay(bucket))
        entries = ledger.drain()
        assert {entry.mode for entry in entries} == {"graph"}
        assert sum(entry.launches for entry in entries) == len(names), names
        assert graphs.recipe(bucket).launches == len(names)
        assert torch.equal(out_buffer[:bucket], direct)
        assert out_buffer[bucket:].isnan().all()


def test_graphs_of_two_layers_share_buffers_and_pool() -> None:
    ledger, source = Ledger(), random_source(512, 1024, 2, 0)
    pool = torch.cuda.graph_pool_handle()
    x_buffer = torch.zeros(8, 512, dtype=torch.bfloat16, device=CUDA)
    out_buffer = torch.zeros_like(x_buffer)
    layers = []
    for layer in source.layers:
        weights = source.load(layer, DType.BF16, torch.device(CUDA))
        mlp = build_mlp("fused", weights, ledger=ledger, max_rows=8)
        graphs = GraphedMlp(mlp, x_buffer, out_buffer, row_buckets(8), ledger, pool)
        graphs.capture()
        layers.append((graphs, weights))
    for graphs, weights in (*layers, *reversed(layers)):
        x = make_rows(3, weights)
        x_buffer[:3].copy_(x)
        x_buffer[3:].zero_()
        graphs.replay(graphs.bucket_for(3))
        torch.cuda.synchronize()
        assert reference.measure_accuracy(out_buffer[:3], x, weights).is_fused_grade


@pytest.mark.parametrize("rows", [3, 33, 200])
def test_a_bad_row_stays_in_its_row(rows: int) -> None:
    weights = make_weights(256, 688)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=rows)
    x = make_rows(rows, weights)
    clean = call(mlp, x)
    others = [row for row in range(rows) if row != 1]
    for value in (math.nan, math.inf, -math.inf):
        x[1, 5] = value
        dirty = call(mlp, x)
        assert dirty[1].isnan().all()
        assert torch.equal(dirty[others], clean[others])


def test_repeated_runs_give_the_same_bits() -> None:
    weights = make_weights(4096, 14336)
    x = make_rows(100, weights)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=100)
    first = call(mlp, x)
    assert all(torch.equal(call(mlp, x), first) for _ in range(5))


def test_more_rows_than_a_y_grid_holds() -> None:
    weights = make_weights(64, 96)
    rows = 65_537 * 4
    x = make_rows(rows, weights)
    answer = call(build_mlp("fused", weights, ledger=Ledger(), max_rows=rows), x)
    assert reference.measure_accuracy(answer, x, weights).is_fused_grade


def test_more_than_two_billion_elements_of_h() -> None:
    """H has 2^31 + 14336 * 160 elements: an int32 offset would wrap in its last rows."""
    intermediate = 14336
    rows = 2**31 // intermediate + 160
    needed = 3 * rows * intermediate * 2
    free, _ = torch.cuda.mem_get_info()
    assert free > needed, f"needs {needed >> 30} GiB of free GPU memory"
    weights = make_weights(128, intermediate)
    x = make_rows(rows, weights)
    answer = call(build_mlp("fused", weights, ledger=Ledger(), max_rows=rows), x)
    for part in (slice(0, 200), slice(rows - 200, rows)):
        assert reference.measure_accuracy(answer[part], x[part], weights).is_fused_grade
    assert answer.isfinite().all()


def test_fp16_overflow_is_infinite_as_in_torch() -> None:
    weights = make_weights(256, 688, DType.FP16)
    x = make_rows(4, weights)
    x[2] *= 5000
    answer = call(build_mlp("fused", weights, ledger=Ledger(), max_rows=4), x)
    eager = reference.eager_mlp(x, weights)
    assert not eager[2].isfinite().all()
    assert not answer[2].isfinite().all()
    assert answer[[0, 1, 3]].isfinite().all()


def test_an_unaligned_view_is_right_and_compiles_nothing() -> None:
    from gatefuse_kernels.swiglu.gate_up import swiglu_gate_up

    weights = make_weights(256, 688)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=4)
    mlp.warm_up()
    compiled = _variants(swiglu_gate_up)
    storage = torch.zeros(4 * 256 + 1, dtype=torch.bfloat16, device=CUDA)
    x = storage[1:].view(4, 256)
    x.copy_(make_rows(4, weights))
    out = torch.full_like(storage, math.nan)[1:].view(4, 256)
    mlp(x, out)
    assert reference.measure_accuracy(out, x, weights).is_fused_grade
    for rows in (1, 2, 3, 4):
        call(mlp, make_rows(rows, weights))
    assert _variants(swiglu_gate_up) == compiled


def _variants(kernel: object) -> int:
    """Compiled variants that a jitted kernel holds on this device."""
    caches = kernel.device_caches  # type: ignore[attr-defined]
    return sum(len(cache[0]) for cache in caches.values())


def test_standalone_with_leading_dimensions() -> None:
    weights = make_weights(256, 688)
    x = make_rows(6, weights)
    answer = gatefuse_kernels.swiglu_mlp(x.view(2, 3, 256), weights)
    assert reference.measure_accuracy(answer.view(6, 256), x, weights).is_fused_grade


@pytest.mark.parametrize("text", ["x", "gelu(x) * 2 + 1", "2 / (1 + exp(-x))"])
def test_elementwise_launches_equal_the_profilers(text: str) -> None:
    ledger = Ledger()
    run = build_elementwise(
        parse_expression(text, {}), ledger=ledger, dtype=DType.BF16, max_rows=64
    )
    x = torch.randn(64, 4096, device=CUDA).to(dtypes.to_torch(DType.BF16))
    out = torch.empty_like(x)
    run(x, out)
    ledger.drain()
    names = profiled(lambda: run(x, out))
    assert counted(ledger) == len(names), names


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_device_that_is_not_current(backend: str) -> None:
    """Triton launches on the current device: without a guard this is an illegal access."""
    device = f"cuda:{torch.cuda.device_count() - 1}"
    weights = make_weights(256, 688, device=device)
    with torch.cuda.device(0):
        mlp = build_mlp(backend, weights, ledger=Ledger(), max_rows=8)
        mlp.warm_up()
        x = make_rows(5, weights)
        answer = call(mlp, x)
    truth = reference.mlp_reference(x, weights)
    assert reference.relative_error(answer, truth) < 6e-3
