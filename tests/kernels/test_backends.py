"""Eager, fused and compiled on the CPU: answers, launches, edges."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

import gatefuse_kernels
from gatefuse_kernels import compiled, dtypes, reference, traffic
from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.shapes import Activation, DType
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.weights.random_weights import random_source

CPU = torch.device("cpu")
MAX_ROWS = 6


# Inductor itself imports a module that still uses it.
compiles = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)


def make_weights(dtype: DType = DType.BF16, activation: Activation = Activation.SILU) -> MlpWeights:
    weights = random_source(131, 77, 1, 3).load(0, dtype, CPU)
    return MlpWeights(weights.gate_up, weights.down, activation)


def make_rows(rows: int, weights: MlpWeights) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, weights.shape.hidden, generator=generator)
    return x.to(weights.down.dtype)


def poisoned(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, math.nan)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DType)
def test_fused_is_within_the_gate(dtype: DType, activation: Activation) -> None:
    weights = make_weights(dtype, activation)
    mlp = build_mlp("auto", weights, ledger=Ledger(), max_rows=100)
    mlp.warm_up()
    assert mlp.backend == "fused"
    for rows in (1, 3, 17, 65):
        x = make_rows(rows, weights)
        out = poisoned(x)
        mlp(x, out)
        accuracy = reference.measure_accuracy(out, x, weights)
        assert accuracy.is_fused_grade, (rows, accuracy)


def test_fused_covers_every_block_of_many_rows() -> None:
    weights = make_weights(DType.FP32)
    x = make_rows(2500, weights)
    out = poisoned(x)
    build_mlp("fused", weights, ledger=Ledger(), max_rows=2500)(x, out)
    error = (out.double() - reference.mlp_reference(x, weights)).abs().amax(dim=1)
    assert error.max() < 1e-5


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DType)
def test_eager_is_the_plain_model_code(dtype: DType, activation: Activation) -> None:
    weights = make_weights(dtype, activation)
    ledger = Ledger()
    mlp = build_mlp("eager", weights, ledger=ledger, max_rows=MAX_ROWS)
    mlp.warm_up()
    assert ledger.drain() == []
    x = make_rows(5, weights)
    out = poisoned(x)
    mlp(x, out)
    torch.testing.assert_close(out, reference.eager_mlp(x, weights))
    assert [(entry.kernel, entry.launches) for entry in ledger.drain()] == [
        ("eager_gate", 1),
        ("eager_up", 1),
        ("eager_activation", 1),
        ("eager_multiply", 1),
        ("eager_down", 1),
    ]


def test_fused_counts_two_launches() -> None:
    weights = make_weights()
    ledger = Ledger()
    mlp = build_mlp("fused", weights, ledger=ledger, max_rows=MAX_ROWS)
    x = make_rows(3, weights)
    mlp(x, poisoned(x))
    mlp(x, poisoned(x))
    entries = ledger.drain()
    assert [(entry.kernel, entry.launches) for entry in entries] == [
        ("swiglu_gate_up", 2),
        ("swiglu_down", 2),
    ]
    assert entries[0].written_bytes == 2 * 3 * 77 * 2


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU_TANH])
def test_compiled(activation: Activation) -> None:
    """Right at every row count, padded inside, one fused kernel and three products counted."""
    weights = make_weights(DType.BF16, activation)
    ledger = Ledger()
    mlp = build_mlp("compiled", weights, ledger=ledger, max_rows=MAX_ROWS)
    mlp.warm_up()
    assert ledger.drain() == []
    assert [mlp.padded_rows(rows) for rows in range(MAX_ROWS + 1)] == [0, 1, 2, 4, 4, 6, 6]
    products = {"compiled_gate": 1, "compiled_up": 1, "compiled_act_mul": 1, "compiled_down": 1}
    for rows in range(1, MAX_ROWS + 1):
        x = make_rows(rows, weights)
        out = poisoned(x)
        mlp(x, out)
        error = reference.relative_error(out, reference.mlp_reference(x, weights))
        assert error < 6e-3
        counted = {entry.kernel: entry.launches for entry in ledger.drain()}
        padding = {"pad_rows": 1} if mlp.padded_rows(rows) > rows else {}
        assert counted == products | padding


@compiles
@pytest.mark.slow
def test_layers_of_one_shape_share_a_compilation() -> None:
    """The second layer compiles nothing; nor does a caller in another grad mode."""
    source = random_source(40, 24, 2, 0)
    counters = torch._dynamo.utils.counters
    layers = [source.load(layer, DType.BF16, CPU) for layer in source.layers]
    counters.clear()
    build_mlp("compiled", layers[0], ledger=Ledger(), max_rows=2).warm_up()
    assert counters["stats"]["unique_graphs"] == 2, (
        "one compilation for each of the buckets 1 and 2"
    )
    mlp = build_mlp("compiled", layers[1], ledger=Ledger(), max_rows=2)
    mlp.warm_up()
    x = make_rows(2, layers[1])
    with torch.inference_mode():
        mlp(x, poisoned(x))
    with torch.enable_grad():
        mlp(x, poisoned(x))
    assert counters["stats"]["unique_graphs"] == 2


def test_compiled_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendUnavailableError, match=r"C\+\+ compiler.*no-such-compiler"):
        build_mlp("compiled", make_weights(), ledger=Ledger(), max_rows=2)


def test_merged_launches_keep_all_bytes() -> None:
    """When the compiler makes fewer kernels than modelled, none of the traffic is lost."""
    base = traffic.compiled_mlp(make_weights().shape, 4, 2)
    for count in (1, 2, 3, 4, 6):
        plan = compiled._plan(base, ("kernel",) * count)
        assert len(plan) == count
        assert sum(part.bytes_moved for part in plan) == sum(part.bytes_moved for part in base)


@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_no_rows_launch_nothing(backend: str) -> None:
    weights = make_weights()
    ledger = Ledger()
    x = make_rows(0, weights)
    build_mlp(backend, weights, ledger=ledger, max_rows=1)(x, torch.empty_like(x))
    assert ledger.drain() == []


def assert_rows_apart(mlp: Mlp, weights: MlpWeights, rows: int, bad: float) -> None:
    """A `bad` value in the last row leaves the others' bits as they are."""
    x = make_rows(rows, weights)
    clean, dirty = poisoned(x), poisoned(x)
    mlp(x, clean)
    x[-1, 5:] = bad
    mlp(x, dirty)
    assert clean.isfinite().all()
    assert not dirty[-1].isfinite().any()
    assert torch.equal(dirty[:-1], clean[:-1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38], ids=str)
@pytest.mark.parametrize("rows", [4, 17, 49])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_a_bad_row_stays_in_its_row(backend: str, dtype: DType, rows: int, bad: float) -> None:
    weights = make_weights(dtype)
    mlp = build_mlp(backend, weights, ledger=Ledger(), max_rows=64)
    assert_rows_apart(mlp, weights, rows, bad)


@compiles
@pytest.mark.slow
def test_a_bad_row_stays_in_its_row_compiled() -> None:
    """Padded and unpadded alike."""
    weights = make_weights(DType.BF16)
    mlp = build_mlp("compiled", weights, ledger=Ledger(), max_rows=49)
    for rows in (17, 33, 49):
        assert_rows_apart(mlp, weights, rows, math.nan)


@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_wrong_arguments_are_refused(backend: str) -> None:
    weights = make_weights()
    mlp: Mlp = build_mlp(backend, weights, ledger=Ledger(), max_rows=4)
    good = make_rows(2, weights)
    wide = torch.empty(2, 200, dtype=torch.bfloat16)
    for x, out, match in (
        (make_rows(5, weights), make_rows(5, weights), "0..4"),
        (good, make_rows(3, weights), "2 rows but out 3"),
        (good.float(), good, "float32"),
        (good, good.float(), "float32"),
        (good[:, :100], good, re.escape("[M, 131]")),
        (wide[:, :131], good, "contiguous"),
        (good.unsqueeze(0), good, re.escape("[M, 131]")),
    ):
        with pytest.raises(ValueError, match=match):
            mlp(x, out)


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="fused, eager, compiled, textbook, auto"):
        build_mlp("fast", make_weights(), ledger=Ledger(), max_rows=4)


def test_the_textbook_kernel_needs_a_gpu() -> None:
    with pytest.raises(BackendUnavailableError, match=r"textbook.*needs a GPU"):
        build_mlp("textbook", make_weights(), ledger=Ledger(), max_rows=4)


@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_descriptions_name_the_form(backend: str) -> None:
    mlp = build_mlp(backend, make_weights(), ledger=Ledger(), max_rows=4)
    assert mlp.description.startswith(f"{backend}")
    if backend == "fused":
        assert "no Triton" in mlp.description


@pytest.mark.parametrize("dtype", DType)
def test_standalone(dtype: DType) -> None:
    weights = make_weights(dtype)
    packed = MlpWeights.pack(weights.gate.clone(), weights.up.clone(), weights.down)
    x = make_rows(6, weights)
    answer = gatefuse_kernels.swiglu_mlp(x.view(2, 3, 131), packed)
    assert answer.shape == (2, 3, 131)
    assert answer.dtype == dtypes.to_torch(dtype)
    assert reference.measure_accuracy(answer.view(6, 131), x, weights).is_fused_grade
    with pytest.raises(ValueError, match=re.escape("[..., 131]")):
        gatefuse_kernels.swiglu_mlp(x[:, :5], packed)


def test_standalone_in_the_deterministic_mode() -> None:
    weights = make_weights(DType.FP32)
    x = make_rows(6, weights)
    together = gatefuse_kernels.swiglu_mlp(x, weights, deterministic=True)
    alone = [gatefuse_kernels.swiglu_mlp(row, weights, deterministic=True) for row in x.split(1)]
    assert torch.equal(together, torch.cat(alone))


def test_a_plan_table_in_the_environment_is_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEFUSE_PLAN_TABLE", str(tmp_path / "missing.json"))
    weights = make_weights()
    assert gatefuse_kernels.swiglu_mlp(make_rows(1, weights), weights).shape == (
        1,
        weights.shape.hidden,
    )


def test_what_was_built_for_weights_is_kept_with_them() -> None:
    weights = make_weights()
    x = make_rows(3, weights)
    first = gatefuse_kernels.swiglu_mlp(x, weights, deterministic=True)
    built = dict(weights.built)
    assert torch.equal(gatefuse_kernels.swiglu_mlp(x, weights, deterministic=True), first)
    assert weights.built == built
    gatefuse_kernels.swiglu_mlp(x, weights)
    assert len(weights.built) == 2
