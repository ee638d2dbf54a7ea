"""What the GPU tests share."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New float memory on the device is NaN, so that what a kernel forgets to write shows in the answer."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, _poisoning(getattr(torch, name)))


def _poisoning(allocate: Any) -> Any:
    def poisoned(*args: Any, **options: Any) -> torch.Tensor:
        memory: torch.Tensor = allocate(*args, **options)
        if not (memory.is_cuda and memory.is_floating_point()):
            return memory
        # A fill would count among the kernels that a capture lists.
        return memory if torch.cuda.is_current_stream_capturing() else memory.fill_(math.nan)

    return poisoned
