"""Expressions through torch.compile: Inductor makes one kernel that loops over the elements once.

On CUDA that kernel is Triton's, on CPU vectorised C++. Shapes are dynamic: the number of elements is an
argument of the kernel. How many kernels the compiler really made is measured on CUDA, from the kernel
nodes of a captured run.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import cast

import torch

from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.torch_ops import evaluate, store
from gatefuse_kernels.errors import BackendUnavailableError
from gatefuse_kernels.expression import CASTS, Program
from gatefuse_kernels.launch.launches import captured_kernels
from gatefuse_kernels.traffic import helper_launch

_Tensors = Sequence[torch.Tensor]
_Run = Callable[[_Tensors, _Tensors, _Tensors], None]

_ANY_COLUMNS = 64
"""Columns in `warm_up` where any number may come."""

_MANY_ROWS = 64
"""Rows in `warm_up` that stand for any number but one: shapes are dynamic."""


class CompiledElementwise:
    """torch.compile of the whole expression: one launch, every op in float32, one rounding."""

    def __init__(self, setting: Setting, backend: str = "compiled") -> None:
        """Prepare to compile.

        Args:
            setting: what to compute.
            backend: the name it goes by.

        Raises:
            BackendUnavailableError: on CPU, when there is no C++ compiler.
        """
        if setting.device.type == "cpu" and not has_cpp_compiler():
            raise BackendUnavailableError(
                "the compiled backend on CPU needs a C++ compiler: install g++, set CXX, or use "
                "the backend fused or eager"
            )
        self.backend = backend
        self._setting = setting
        self._traffic = setting.traffic_of(backend)
        self._run = _compiled(setting.program, setting.dtype.value, setting.device)
        self._launches: int | None = None

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        made = "Triton kernel" if self._setting.device.type == "cuda" else "C++ loop"
        return (
            f"{self.backend}: {self._setting.program.text} as one {made} made by torch.compile, "
            "in float32 with one rounding"
        )

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Compile for many rows and for one, which torch treats as another shape; count the kernels."""
        for rows in {1, min(_MANY_ROWS, self._setting.max_rows)}:
            inputs, outputs = self._zeros(rows)
            self._launch(inputs, outputs)
        self._launches = self._measure()

    def __call__(self, inputs: _Tensors, outputs: _Tensors) -> None:
        """Run the compiled kernel; see `Elementwise`."""
        setting = self._setting
        rows, columns = setting.check(inputs, outputs)
        if rows == 0 or columns == 0:
            return
        self._launch(inputs, outputs)
        if self._launches is None:
            self._launches = self._measure()
        (launch,) = self._traffic(rows, columns)
        setting.ledger.count(launch)
        for _ in range(self._launches - 1):
            setting.ledger.count(helper_launch(launch))

    def _zeros(self, rows: int) -> tuple[_Tensors, _Tensors]:
        setting = self._setting
        like = torch.zeros(
            rows,
            setting.columns or _ANY_COLUMNS,
            dtype=setting.torch_dtype,
            device=setting.device,
        )
        # Each in memory of its own: torch would compile another form for operands that overlap.
        program = setting.program
        return [like.clone() for _ in program.inputs], [like.clone() for _ in program.outputs]

    def _measure(self) -> int:
        device = self._setting.device
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return 1
        inputs, outputs = self._zeros(min(2, self._setting.max_rows))
        with torch.cuda.device(device):
            self._launch(inputs, outputs)
            return len(captured_kernels(lambda: self._launch(inputs, outputs)))

    def _launch(self, inputs: _Tensors, outputs: _Tensors) -> None:
        constants = self._setting.constants
        # Guards ask of what a tensor is a view: of nothing, whoever calls.
        inputs = [each.detach() for each in inputs]
        outputs = [each.detach() for each in outputs]
        if not constants:
            # Rows do not matter without vectors: one long row is one shape less to compile for.
            inputs = [each.view(-1) for each in inputs]
            outputs = [each.view(-1) for each in outputs]
        # Guards include both modes: pin them, or a caller in another mode would recompile.
        with torch.inference_mode(False), torch.no_grad():
            self._run(inputs, constants, outputs)


def has_cpp_compiler() -> bool:
    """Whether Inductor finds what it compiles C++ with."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


@cache
def _compiled(program: Program, dtype: str, device: torch.device) -> _Run:
    names = (*program.inputs, *program.vectors)

    def elementwise(inputs: _Tensors, constants: _Tensors, outputs: _Tensors) -> None:
        tensors = dict(zip(names, (*inputs, *constants), strict=True))
        store(evaluate(program, tensors, in_float32=True), outputs)

    # Dynamo keeps its cache and its limit of recompilations per code object: here each program and
    # type has its own.
    code = elementwise.__code__.replace(co_name=f"elementwise_{dtype}_{device.type}")
    function = FunctionType(
        code, elementwise.__globals__, code.co_name, None, elementwise.__closure__
    )
    rounds = any(step.op in CASTS for step in program.steps)
    # Without this Inductor leaves out a cast to 16 bits that is followed by one back, and lets its GPU kernels round
    # a product and a sum as one.
    options: dict[str, str | int | bool | Callable[..., object]] = {
        "emulate_precision_casts": rounds or device.type == "cuda"
    }
    compiled = torch.compile(function, dynamic=True, fullgraph=True, options=options)
    return _quietly(cast(_Run, compiled)) if rounds else cast(_Run, compiled)


def _quietly(run: _Run) -> _Run:
    """Inductor warns of bf16 beside fp16 when it compiles; casts may ask for just that."""

    def quiet(inputs: _Tensors, constants: _Tensors, outputs: _Tensors) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "bf16 and fp16 are mixed", UserWarning)
            run(inputs, constants, outputs)

    return quiet
