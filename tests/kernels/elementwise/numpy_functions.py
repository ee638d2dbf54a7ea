"""libdevice's functions by numpy, for Triton's interpreter, which has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from gatefuse_kernels.elementwise import exact, short

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "power": np.power,
}


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*operands: Any) -> Any:
        model = next(each for each in operands if isinstance(each, tl.tensor))
        arrays = [
            each.handle.data.astype(np.float64)
            if isinstance(each, tl.tensor)
            else np.float64(getattr(each, "value", each))
            for each in operands
        ]
        with np.errstate(all="ignore"):
            result = function(*arrays).astype(np.float32)
        shapes = [each for each in operands if isinstance(each, tl.tensor)]
        widest = max(shapes, key=lambda each: each.handle.data.size)
        result = result.reshape(np.broadcast_shapes(*(each.handle.data.shape for each in shapes)))
        assert result.shape == widest.handle.data.shape or len(shapes) > 1
        kind = tl.block_type(tl.float32, list(result.shape)) if result.shape else tl.float32
        return tl.tensor(
            TensorHandle(result, tl.float32), kind if model.type.is_block() else tl.float32
        )

    return called


def replace_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both modules that generated kernels call."""
    for name, function in FUNCTIONS.items():
        for module in (exact, short):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, _on_tensors(function))
