"""The MLP through torch.compile, at static row counts.

Each row bucket is compiled once for a shape, dtype, device and activation: the weights are
arguments, so all layers and models of one shape share the compilation. Rows between buckets are
padded with zeros.

The last product runs outside the compiled function, as the same library call that Inductor would
make, because there it can write into `out`. A compiled function only returns new memory, and in a
CUDA graph the copy from it is a kernel of the driver's own on some runs, which no node shows.

How many kernels the compiler made is measured in `warm_up`: on CUDA from the kernel nodes of a
captured run, on CPU from a profile of one run, in which each library product and each generated
C++ kernel shows by name. Copies (rows into the padded buffer and out of it) are not kernels in
either count.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import NamedTuple, cast

import torch
from torch.nn import functional

from gatefuse_kernels import traffic
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.launch.launches import captured_kernels
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.mlp import check_call
from gatefuse_kernels.reference import activate
from gatefuse_kernels.shapes import Activation, bucket_for, row_buckets
from gatefuse_kernels.traffic import KernelTraffic, helper_launch
from gatefuse_kernels.weights.packed import MlpWeights
from gatefuse_kernels.workspace import STEP, needs_apart_rows, temporary

_Forward = Callable[..., torch.Tensor]


class _Key(NamedTuple):
    """What one compilation is specialised for."""

    rows: int
    hidden: int
    intermediate: int
    dtype: torch.dtype
    device: torch.device
    activation: Activation


class CompiledMlp:
    """torch.compile of gate, up, activation and multiply, one static graph per row bucket."""

    backend = "compiled"

    def __init__(self, weights: MlpWeights, ledger: Ledger, max_rows: int) -> None:
        """Prepare to compile for the device of `weights`.

        Raises:
            BackendUnavailableError: on CPU, when there is no C++ compiler.
        """
        if weights.device.type == "cpu":
            _require_cpp_compiler()
        self._weights = weights
        self._computed = _with_whole_steps(weights)
        self._ledger = ledger
        self._max_rows = max_rows
        self._buckets = row_buckets(max_rows)
        self._launches: dict[int, tuple[KernelTraffic, ...]] = {}

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        made = "Triton" if self._weights.device.type == "cuda" else "C++"
        return (
            f"compiled: torch.compile on {self._weights.device.type} (library products, Inductor "
            f"{made} for the gate), rows padded to {', '.join(map(str, self._buckets))}"
        )

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """The static buckets: in between, a call pads to the next of them anyway."""
        return self._buckets if self._weights.device.type == "cuda" else ()

    def padded_rows(self, rows: int) -> int:
        """The static bucket `rows` is padded to; 0 for no rows."""
        return bucket_for(rows, self._buckets) if rows else 0

    def warm_up(self) -> None:
        """Compile every bucket and measure its launches."""
        for bucket in self._buckets:
            self._prepare(bucket)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run the bucket's compiled graph; see `Mlp`."""
        rows = check_call(x, out, self._weights, self._max_rows)
        if rows == 0:
            return
        bucket = bucket_for(rows, self._buckets)
        launches = self._launches.get(bucket) or self._prepare(bucket)
        hidden, computed = x.shape[1], self._computed.down.shape[0]
        if bucket > rows:
            self._ledger.count(traffic.pad_rows(bucket - rows, hidden, x.element_size()))
        if bucket > rows or computed > hidden:
            padded = temporary("compiled_padded", x, bucket, computed)
            padded[:rows, :hidden].copy_(x)
            padded[:rows, hidden:].zero_()
            padded[rows:].zero_()
            answer = temporary("compiled_answer", x, bucket, computed)
            self._forward(padded, answer)
            out.copy_(answer[:rows, :hidden])
        else:
            self._forward(x, out)
        for launch in launches:
            self._ledger.count(launch)

    def _forward(self, x: torch.Tensor, out: torch.Tensor) -> None:
        weights = self._computed
        key = _Key(
            x.shape[0], x.shape[1], weights.down.shape[1], x.dtype, x.device, weights.activation
        )
        # Guards include both modes: pin them, or a caller in another mode would recompile.
        with torch.inference_mode(False), torch.no_grad():
            gated = _compiled(key)(x, weights.gate, weights.up, weights.activation)
        torch.mm(gated, weights.down.t(), out=out)

    def _prepare(self, bucket: int) -> tuple[KernelTraffic, ...]:
        like = self._computed.down
        x = torch.zeros(bucket, like.shape[0], dtype=like.dtype, device=like.device)
        out = torch.empty_like(x)
        with warnings.catch_warnings():
            # Inductor advises TF32 for float32 products. Here float32 means float32, on purpose.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
            self._forward(x, out)
        if like.device.type == "cuda":
            with torch.cuda.device(like.device):
                names = captured_kernels(lambda: self._forward(x, out))
        else:
            names = _profiled_kernels(lambda: self._forward(x, out))
        plan = _plan(traffic.compiled_mlp(self._weights.shape, bucket, like.element_size()), names)
        self._launches[bucket] = plan
        return plan


def _with_whole_steps(weights: MlpWeights) -> MlpWeights:
    """Weights whose widths a CPU's product contracts without reading past a row's end; see `needs_apart_rows`.

    Zeros are appended to both widths: they add nothing to any sum, and activated they stay zero.
    """
    hidden, intermediate = weights.down.shape
    kind = weights.down.dtype, weights.device
    if not any(needs_apart_rows(*kind, width) for width in (hidden, intermediate)):
        return weights
    more_hidden, more_intermediate = -hidden % STEP, -intermediate % STEP
    more = (0, more_hidden, 0, more_intermediate)
    gate_up = torch.cat([functional.pad(each, more) for each in (weights.gate, weights.up)])
    down = functional.pad(weights.down, (0, more_intermediate, 0, more_hidden))
    return MlpWeights(gate_up, down, weights.activation)


def _gate(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: Activation
) -> torch.Tensor:
    gated = x @ gate.t()
    return activate(gated, activation) * (x @ up.t())


@cache
def _compiled(key: _Key) -> _Forward:
    # Dynamo keeps its cache and its recompile limit (8) per code object, and walks that cache at
    # each call: a code object per key keeps calls at one guard check however many buckets exist.
    code = _gate.__code__.replace(co_name=f"gate_{key.rows}_{key.hidden}_{key.intermediate}")
    function = FunctionType(code, _gate.__globals__, code.co_name)
    options: dict[str, str | int | bool | Callable[..., object]] = {}
    if key.device.type == "cpu":
        options["cpp.enable_kernel_profile"] = True
    return cast(
        _Forward, torch.compile(function, dynamic=False, fullgraph=True, options=options or None)
    )


def _plan(base: tuple[KernelTraffic, ...], names: tuple[str, ...]) -> tuple[KernelTraffic, ...]:
    """Give the modelled traffic to the launches that were really measured."""
    extra = len(names) - len(base)
    if extra >= 0:
        return (*base, *[helper_launch(base[-1])] * extra)
    # The compiler merged kernels (a GEMM template with an epilogue): one launch carries the rest.
    kept = base[: len(names) - 1]
    rest = base[len(names) - 1 :]
    merged = KernelTraffic(
        "compiled_merged",
        tuple(read for part in rest for read in part.reads),
        tuple(write for part in rest for write in part.writes),
        sum(part.flops for part in rest),
    )
    return (*kept, merged)


def _profiled_kernels(work: Callable[[], object]) -> tuple[str, ...]:
    # Some builds print a line for each profile; the level is read at the process's first one.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    names = [event.name for event in profile.events()]
    return tuple(name for name in names if name in _LIBRARY_OPS or "cpp_fused" in name)


_LIBRARY_OPS = frozenset({"aten::mm", "aten::addmm", "aten::linear", "mkl::_mkl_linear"})


def _require_cpp_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise BackendUnavailableError(
            f"the compiled backend on CPU needs a C++ compiler, and {compiler!r} is not on the "
            "PATH: install g++, set CXX, or use the backend fused or eager"
        )
