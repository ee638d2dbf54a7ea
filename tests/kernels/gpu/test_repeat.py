"""The same bits again: in the next call, beside other rows, in another process."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA, FORMS, build
from tests.kernels.gpu.watching import bits, same_bits

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.launch.graphs import GraphedMlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import plans_for
from gatefuse_kernels.shapes import DType

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 16, 100, 600])
def test_the_same_call_gives_the_same_bits(rows: int, form: str) -> None:
    weights = make_weights(2048, 6144, device=CUDA)
    x = make_rows(rows, weights)
    mlp = build(form, weights, rows)
    first = call(mlp, x)
    assert all(same_bits(call(mlp, x), first) for _ in range(20))


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", [(1024, 2816), (256, 688), (130, 1001)], ids=str)
def test_deterministic_rows_do_not_depend_on_their_company(
    shape: tuple[int, int], dtype: DType
) -> None:
    """TransformerEngine#2986, #3556: a row's bits changed with M, for the library picks by the whole shape.

    1,000 batches of random size, members and order; each row must have the bits it has alone.
    """
    weights = make_weights(*shape, dtype, device=CUDA)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=600, deterministic=True)
    mlp.warm_up()
    pool = make_rows(256, weights)
    alone = torch.cat([call(mlp, pool[row : row + 1]) for row in range(256)])
    sizes = torch.randint(1, 600, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    generator = torch.Generator(CUDA).manual_seed(0)
    wrong = torch.zeros((), dtype=torch.int64, device=CUDA)
    for rows in (*range(1, 70), *sizes[69:]):
        chosen = torch.randint(256, (rows,), generator=generator, device=CUDA)
        answer = call(mlp, pool[chosen])
        wrong += (bits(answer) != bits(alone)[chosen]).any(dim=1).sum()
    assert wrong.item() == 0


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_deterministic_rows_do_not_depend_on_the_tiles_of_a_row_count(dtype: DType) -> None:
    """A shape that was measured, with other tiles in each class of row counts."""
    weights = make_weights(2048, 6144, dtype, device=CUDA)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=2500, deterministic=True)
    plans = plans_for(weights.shape, dtype, profile_of(weights.device), deterministic=True)
    pool = make_rows(256, weights)
    alone = torch.cat([call(mlp, row) for row in pool.split(1)])
    generator = torch.Generator(CUDA).manual_seed(0)
    for rows in {*plans.representatives(2500), *(limit + 1 for limit in plans.limits[:-1]), 1500}:
        chosen = torch.randint(256, (rows,), generator=generator, device=CUDA)
        assert torch.equal(bits(call(mlp, pool[chosen])), bits(alone)[chosen]), rows


def test_deterministic_rows_do_not_depend_on_the_bucket() -> None:
    weights = make_weights(256, 688, device=CUDA)
    ledger = Ledger()
    mlp = build_mlp("fused", weights, ledger=ledger, max_rows=128, deterministic=True)
    x_buffer = torch.zeros(128, 256, dtype=torch.bfloat16, device=CUDA)
    out_buffer = torch.full_like(x_buffer, math.nan)
    pool = torch.cuda.graph_pool_handle()
    graphs = GraphedMlp(mlp, x_buffer, out_buffer, (1, 16, 17, 64, 128), ledger, pool)
    graphs.capture()
    row = make_rows(1, weights)
    alone = call(mlp, row)
    for bucket in (1, 16, 17, 64, 128):
        x_buffer.copy_(noise(128, 256, seed=bucket, dtype=torch.bfloat16, device=CUDA))
        place = bucket // 2
        x_buffer[place] = row[0]
        graphs.replay(bucket)
        assert same_bits(out_buffer[place : place + 1], alone)


_PROGRAM = """
import hashlib, torch
from gatefuse_kernels.shapes import DType
from tests.kernels.gpu.test_repeat import digest
print(digest())
"""


def digest() -> str:
    """Plans and answers of a few calls, as one word."""
    digest = hashlib.sha256()
    for dtype in DType:
        weights = make_weights(512, 1408, dtype, device=CUDA)
        for form in ("fused", "deterministic"):
            mlp = build(form, weights, 300)
            digest.update(mlp.description.encode())
            for rows in (1, 16, 40, 100, 300):
                answer = call(mlp, make_rows(rows, weights))
                digest.update(bits(answer).cpu().numpy().tobytes())
    return digest.hexdigest()


def test_two_processes_agree() -> None:
    """triton#9368, Megatron-LM#6966: ranks that time their own choice choose differently (13 of 22 keys of 8 ranks)."""
    command = [sys.executable, "-c", _PROGRAM]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert set(answers) == {digest()}
