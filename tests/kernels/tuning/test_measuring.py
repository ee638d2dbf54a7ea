"""What a stopwatch says of answers that it holds against each other."""

from __future__ import annotations

import math

import torch

from gatefuse_kernels.tuning.measuring import same_bytes


def test_answers_are_compared_as_they_lie_in_memory() -> None:
    zeros, nans = torch.zeros(3, 2), torch.full((3, 2), math.nan)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert same_bytes([nans.to(dtype), nans.to(dtype).clone()])
        assert not same_bytes([zeros.to(dtype), zeros.to(dtype), -zeros.to(dtype)])
    assert same_bytes([zeros])
