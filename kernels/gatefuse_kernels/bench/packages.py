"""Fused MLPs from PyPI, imported only when they are called.

Both run one Triton kernel for gate, up and silu, tuned among 32 configurations at its first call
for a shape, then a library product; the kernel's source is the same in both.
"""

from importlib import import_module, metadata
from types import ModuleType
from typing import Any

import torch
import triton.testing

from gatefuse_kernels.bench.capture import Forward
from gatefuse_kernels.weights.packed import MlpWeights

_TUNE_WARM_UP_MS = 5
_TUNE_MS = 20
"""For each configuration, instead of 25 and 100 ms: 32 of them are tuned for each shape and M."""

_BUCKETS = ((256, 32, 0), (4096, 128, 8), (1 << 31, 1 << 31, 40))
"""Largest M (exclusive), width of its buckets and number of the first: how the packages key M."""


class FlashSwiglu:
    """flash-swiglu-mlp."""

    name = "flash_swiglu"

    @property
    def version(self) -> str:
        """See `Peer`."""
        return _version("flash-swiglu-mlp")

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        """See `Peer`."""
        module = import_module("flash_swiglu_mlp.ops")
        _shorten_tuning(module)
        call: Any = module.flash_swiglu
        return _forward(call, weights)


class Liger:
    """Liger's fused MLP, `LigerMLP`."""

    name = "liger"

    @property
    def version(self) -> str:
        """See `Peer`."""
        return _version("liger-kernel")

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        """See `Peer`."""
        module = import_module("liger_kernel.ops.mlp")
        _shorten_tuning(module)
        if _version("flash-swiglu-mlp"):
            _share_tuning(import_module("flash_swiglu_mlp.ops"), module)
        call: Any = module.LigerMLPFunction.apply
        return _forward(call, weights)


def distinct_kernels(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the row counts that between them compile every variant the packages' kernel needs.

    Triton makes a variant for an integer that is 1, for one that 16 divides, and for the rest; M
    and its bucket are such integers.
    """
    first: dict[tuple[int, int], int] = {}
    for count in rows:
        first.setdefault((_specialisation(count), _specialisation(_bucket(count))), count)
    return tuple(first.values())


def _specialisation(value: int) -> int:
    return 1 if value == 1 else 16 if value % 16 == 0 else 0


def _bucket(rows: int) -> int:
    width, first = next((width, first) for most, width, first in _BUCKETS if rows < most)
    return first + rows // width


def _forward(call: Any, weights: MlpWeights) -> Forward:
    def forward(x: torch.Tensor) -> torch.Tensor:
        # [M, H] as one sequence: a batch of M sequences would read the weights M times.
        answer: torch.Tensor = call(x[None], weights.gate, weights.up, weights.down)
        return answer[0]

    return forward


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _shorten_tuning(module: ModuleType) -> None:
    """Tune for less time; read by Triton's autotuner when it first tunes."""
    module._swiglu_kernel_forward_inference._do_bench = _bench


def _bench(call: Any, quantiles: Any) -> Any:
    return triton.testing.do_bench(call, warmup=_TUNE_WARM_UP_MS, rep=_TUNE_MS, quantiles=quantiles)


def _share_tuning(source: ModuleType, target: ModuleType) -> None:
    """Give one package the configurations the other has found, where their kernels are the same."""
    tuned, other = source._swiglu_kernel_forward_inference, target._swiglu_kernel_forward_inference
    is_same = tuned.fn.src == other.fn.src and [*map(str, tuned.configs)] == [
        *map(str, other.configs)
    ]
    if is_same:
        other.cache.update(tuned.cache)
