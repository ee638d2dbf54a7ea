"""Whether a row's bits depend on the rows computed with it."""

import random

import torch

from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.bench.results import Invariance
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.weights.packed import MlpWeights

_POOL_ROWS = 256
_LEAST_ROWS = 64


def check_invariance(weights: MlpWeights, compositions: int, max_rows: int) -> Invariance:
    """Compute random batches of a pool's rows and hold each row's bits to those it has alone.

    Sizes are spread evenly over the powers of two up to `max_rows`, at least 64, as small batches
    meet more variants of the kernels than large ones; rows, their order and repetitions are random.
    """
    max_rows = max(max_rows, _LEAST_ROWS)
    mlp = build_mlp("fused", weights, ledger=Ledger(), max_rows=max_rows, deterministic=True)
    mlp.warm_up()
    generator = torch.Generator(weights.device).manual_seed(0)
    pool = torch.randn(
        _POOL_ROWS, weights.shape.hidden, generator=generator, device=weights.device
    ).to(weights.down.dtype)
    alone = torch.empty_like(pool)
    for row in range(_POOL_ROWS):
        mlp(pool[row : row + 1], alone[row : row + 1])
    sizes = random.Random(0)
    different = torch.zeros((), dtype=torch.int64, device=weights.device)
    compared = largest = 0
    for _ in range(compositions):
        rows = min(max_rows, int(2 ** sizes.uniform(0, max_rows.bit_length())))
        chosen = torch.randint(_POOL_ROWS, (rows,), generator=generator, device=weights.device)
        out = torch.full_like(pool[chosen], torch.nan)
        mlp(pool[chosen], out)
        # Bytes, not numbers: NaN must equal itself and -0 must not equal 0.
        differs = out.view(torch.uint8) != alone[chosen].view(torch.uint8)
        different += differs.any(dim=1).sum()
        compared += rows
        largest = max(largest, rows)
    return Invariance(weights.shape, compositions, largest, compared, int(different))
