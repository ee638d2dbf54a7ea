"""What is asked of each model of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gatefuse.commands.audit.cases import byte_cases, request_rows
from gatefuse.config import Batching, ModelConfig, RandomWeights, VectorFile
from gatefuse_kernels.audit.cases import MlpCase, ProgramCase
from gatefuse_kernels.plan import KNOWN_DEVICES, graph_buckets, plans_for
from gatefuse_kernels.shapes import DType, MlpShape, bucket_for, row_buckets

L2_BYTES = 50_000
RANDOM = RandomWeights(hidden=4096, intermediate=14336)


@pytest.mark.parametrize("most", [1, 2, 7, 100, 256, 1000, 8192, 65536])
@pytest.mark.parametrize("device", ["nvidia-h200", "nvidia-l4"])
def test_requests_replay_every_graph(most: int, device: str) -> None:
    """Of the fused backend as of the compiled one, whose buckets are powers of two."""
    shape = MlpShape(4096, 14336)
    profile = KNOWN_DEVICES[device]
    plans = plans_for(shape, DType.BF16, profile)
    rows = request_rows(most)
    for buckets in (
        graph_buckets(most, shape, DType.BF16, profile, plans),
        row_buckets(most),
    ):
        met = {bucket_for(count, buckets) for count in rows if count <= most}
        assert met == set(buckets)
    assert rows[-1] > most


def test_an_mlp() -> None:
    model = ModelConfig(
        name="ffn", random=RANDOM, backend="auto", batching=Batching(max_batch_rows=64)
    )
    (case,) = byte_cases([model], [1, 64, 65], 10, L2_BYTES)
    assert isinstance(case, MlpCase)
    assert (case.backend, case.shape, case.rows) == ("fused", MlpShape(4096, 14336), (1, 64))


def test_no_row_count_that_was_asked_for_is_not_every_one() -> None:
    """An MLP of smaller batches than all of them is left out."""
    small, large = (
        ModelConfig(name=name, random=RANDOM, batching=Batching(max_batch_rows=most))
        for name, most in (("small", 63), ("large", 64))
    )
    assert [case.model for case in byte_cases([small, large], [64, 65], 10, L2_BYTES)] == ["large"]
    assert [case.model for case in byte_cases([small, large], [], 10, L2_BYTES)] == [
        "small",
        "large",
    ]


def test_a_program_beyond_l2_and_at_its_largest_batch() -> None:
    model = ModelConfig(
        name="chain",
        kind="elementwise",
        expression="gelu(x) * scale + residual",
        constants={"scale": 0.5},
        columns=1000,
    )
    (case,) = byte_cases([model], [], 100_000_000, L2_BYTES)
    assert isinstance(case, ProgramCase)
    assert case.rows == (256, 100_000)
    assert case.program == model.program


def test_by_default_a_programs_tensors_are_far_beyond_l2() -> None:
    model = ModelConfig(
        name="chain", kind="elementwise", expression="x + 1", columns=100, dtype=DType.FP16
    )
    (case,) = byte_cases([model], [], None, L2_BYTES)
    assert isinstance(case, ProgramCase)
    assert max(case.rows) * 100 * 2 == 32 * L2_BYTES


def test_a_programs_columns_are_its_vectors() -> None:
    model = ModelConfig(
        name="chain", kind="elementwise", expression="x * v", constants={"v": (1.0, 2.0, 3.0)}
    )
    (case,) = byte_cases([model], [], 9, L2_BYTES)
    assert isinstance(case, ProgramCase)
    assert (case.columns, case.vectors, case.rows) == (3, ("v",), (3, 256))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_programs_columns_are_those_of_its_vectors_file(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    save_file({"bias": torch.ones(7, dtype=dtype)}, tmp_path / "v.safetensors")
    vector = VectorFile(file=tmp_path / "v.safetensors", tensor="bias")
    model = ModelConfig(
        name="chain", kind="elementwise", expression="x + v", constants={"v": vector}
    )
    (case,) = byte_cases([model], [], 70, L2_BYTES)
    assert isinstance(case, ProgramCase)
    assert (case.columns, case.rows) == (7, (10, 256))
