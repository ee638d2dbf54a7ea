"""The whole MLP through torch.compile, at static shapes."""

import warnings
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import cast

import torch
from torch.nn import functional

from gatefuse_kernels.bench.capture import Forward
from gatefuse_kernels.shapes import MlpShape
from gatefuse_kernels.weights.packed import MlpWeights

_Compiled = Callable[..., torch.Tensor]


class CompiledPeer:
    """torch.compile in one of its modes; the weights are arguments, so their copies share code."""

    version = torch.__version__

    def __init__(self, name: str, mode: str | None) -> None:
        """Compile with `mode`; None is torch's default."""
        self.name = name
        self._mode = mode

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        """See `Peer`."""
        compiled = _compiled(self._mode, weights.shape, rows, weights.down.dtype)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return compiled(x, weights.gate, weights.up, weights.down)

        return forward


def silence() -> None:
    """Keep torch.compile's tables of what it tuned off the terminal."""
    from torch._inductor import select_algorithm

    select_algorithm.PRINT_AUTOTUNE = False
    # It advises TF32 for float32 products. Here float32 means float32, on purpose.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)


def _mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()


@cache
def _compiled(mode: str | None, shape: MlpShape, rows: int, dtype: torch.dtype) -> _Compiled:
    # A code object for each case: dynamo's recompile limit counts per code object.
    code = _mlp.__code__.replace(co_name=f"mlp_{shape}_{rows}_{str(dtype).rpartition('.')[2]}")
    function = FunctionType(code, _mlp.__globals__, code.co_name)
    return cast(_Compiled, torch.compile(function, mode=mode, dynamic=False, fullgraph=True))
