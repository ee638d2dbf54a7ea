"""Expressions as unfused torch ops: one kernel per op, each reading and writing all."""

from collections.abc import Callable, Sequence

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.expression import Operand, Step
from gatefuse_kernels.expression.types import step_types

_aten = torch.ops.aten


def _copy(a: torch.Tensor, out: torch.Tensor) -> None:
    # torch would copy by a memcpy on CUDA, which is no kernel; times one is exact and is one. A vector
    # is broadcast by a kernel, whatever its type.
    if a.is_cuda and (a.dtype, a.shape) == (out.dtype, out.shape):
        torch.mul(a, 1, out=out)
    else:
        out.copy_(a)


_OPS: dict[str, Callable[..., object]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "neg": torch.neg,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "where": torch.where,
    "min": torch.minimum,
    "max": torch.maximum,
    "clamp": torch.clamp,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "relu": lambda a, *, out: torch.clamp_min(a, 0, out=out),
    "silu": lambda a, *, out: _aten.silu.out(a, out=out),
    "gelu": lambda a, *, out: _aten.gelu.out(a, approximate="none", out=out),
    "gelu_tanh": lambda a, *, out: _aten.gelu.out(a, approximate="tanh", out=out),
    "softplus": lambda a, *, out: _aten.softplus.out(a, 1, 20, out=out),
    "fp32": lambda a, *, out: _copy(a, out),
    "bf16": lambda a, *, out: _copy(a, out),
    "fp16": lambda a, *, out: _copy(a, out),
}

_TERNARY = ("where", "clamp")
"""Ops whose constants must be tensors on the device."""


class EagerElementwise:
    """One torch op per step, intermediates in the types that torch gives them."""

    backend = "eager"

    def __init__(self, setting: Setting) -> None:
        """Look everything up once, so that a call only launches."""
        program = setting.program
        self._setting = setting
        self._traffic = setting.traffic_of("eager")
        self._full = program.full_steps()
        self._types = [
            torch.bool if each is None else dtypes.to_torch(each)
            for each in step_types(program, setting.dtype)
        ]
        self._constants = [
            self._prepare(step, kind) for step, kind in zip(program.steps, self._types, strict=True)
        ]
        # The first output that is a step of whole rows in the right type is written by that step.
        self._targets: dict[int, int] = {}
        self._copies: list[tuple[int, Operand]] = []
        for number, result in enumerate(program.results):
            if isinstance(result, int) and self._writes_itself(result):
                self._targets[result] = number
            else:
                self._copies.append((number, result))

    @property
    def description(self) -> str:
        """One sentence: what runs."""
        count = len(self._setting.program.steps) + len(self._copies)
        return f"eager: {self._setting.program.text} as {count} torch op{'s' * (count > 1)}"

    def padded_rows(self, rows: int) -> int:
        """No padding."""
        return rows

    def warm_up(self) -> None:
        """Nothing to compile."""

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Run the steps; see `Elementwise`."""
        setting = self._setting
        rows, columns = setting.check(inputs, outputs)
        if rows == 0 or columns == 0:
            return
        program = setting.program
        tensors = dict(
            zip((*program.inputs, *program.vectors), (*inputs, *setting.constants), strict=True)
        )
        steps: list[torch.Tensor] = []
        for number, step in enumerate(program.steps):
            operands = [
                constant
                if isinstance(each, float)
                else tensors[each]
                if isinstance(each, str)
                else steps[each]
                for each, constant in zip(step.operands, self._constants[number], strict=True)
            ]
            out = self._target(number, inputs[0], outputs)
            _OPS[step.op](*operands, out=out)
            steps.append(out)
        for number, result in self._copies:
            if isinstance(result, float):
                outputs[number].fill_(result)
            else:
                _copy(
                    tensors[result] if isinstance(result, str) else steps[result], outputs[number]
                )
        for launch in self._traffic(rows, columns):
            setting.ledger.count(launch)

    def _writes_itself(self, step: int) -> bool:
        return (
            self._full[step]
            and self._types[step] is self._setting.torch_dtype
            and step not in self._targets
        )

    def _target(
        self, step: int, like: torch.Tensor, outputs: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        if step in self._targets:
            return outputs[self._targets[step]]
        shape = like.shape if self._full[step] else like.shape[1:]
        return torch.empty(shape, dtype=self._types[step], device=like.device)

    def _prepare(self, step: Step, result: torch.dtype) -> list[float | torch.Tensor | None]:
        """The step's constants as its op takes them; a zero-dimensional tensor does not promote."""
        device = self._setting.device
        has_plain_limits = step.op == "clamp" and all(
            isinstance(each, float) == (place > 0) for place, each in enumerate(step.operands)
        )
        plain = step.op == "pow" or has_plain_limits

        def prepare(operand: Operand) -> float | torch.Tensor | None:
            if not isinstance(operand, float):
                return None
            if plain:
                # A number of Python's: some powers have kernels of their own.
                return operand
            if step.op in _TERNARY:
                # These take no tensor of another device; one of another type would be a launch more.
                return torch.tensor(operand, dtype=result, device=device)
            # On the CPU it rides along as a kernel argument.
            return torch.tensor(operand, dtype=torch.float64)

        return [prepare(each) for each in step.operands]
