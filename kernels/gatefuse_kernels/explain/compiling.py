"""What the compiler makes of our kernels for a device, which need not be there: registers, shared memory, occupancy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.aot.offline import compiling_for
from gatefuse_kernels.aot.resources import resources_of
from gatefuse_kernels.elementwise.call import Setting
from gatefuse_kernels.elementwise.fused import FusedElementwise
from gatefuse_kernels.explain.mlp import fused_plan
from gatefuse_kernels.explain.occupancy import Compiled, occupancy
from gatefuse_kernels.explain.results import Explanation, Form, Point
from gatefuse_kernels.expression import Program
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import Algorithm, DeviceProfile, Plan
from gatefuse_kernels.plan.textbook import textbook_plans
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.swiglu.launcher import Launcher
from gatefuse_kernels.weights.packed import MlpWeights


def compile_mlp(shape: MlpShape, explanation: Explanation) -> Explanation:
    """Compile what fused and textbook would launch, at each row count, for the explanation's device.

    Raises:
        ValueError: nothing but the roofs is known of the device.
    """
    device = explanation.roofs.profile
    if device is None:
        raise ValueError("nothing is known of the device but its roofs")
    compiler = _MlpCompiler(shape, explanation.dtype, device)

    def point_of(point: Point) -> Point:
        plans = {
            "fused": fused_plan(shape, point.rows, explanation.dtype, explanation.roofs),
            "textbook": textbook_plans(shape, explanation.dtype).at(point.rows),
        }
        forms = (_with(form, plans.get(form.backend), point.rows) for form in point.forms)
        return replace(point, forms=tuple(forms))

    def _with(form: Form, plan: Plan | None, rows: int) -> Form:
        return replace(form, compiled=compiler.compile(plan, rows)) if plan else form

    return replace(explanation, points=tuple(point_of(point) for point in explanation.points))


def compile_program(program: Program, explanation: Explanation) -> Explanation:
    """Compile the generated kernel for the explanation's device.

    Raises:
        ValueError: nothing but the roofs is known of the device.
    """
    device = explanation.roofs.profile
    if device is None:
        raise ValueError("nothing is known of the device but its roofs")
    (point,) = explanation.points
    dtype = dtypes.to_torch(explanation.dtype)
    vectors = {name: torch.empty(point.columns, dtype=dtype) for name in program.vectors}
    setting = Setting(
        program, vectors, Ledger(), explanation.dtype, torch.device("cpu"), 1, point.columns
    )
    compiled = compile_launches(FusedElementwise(setting).warm_up, device)
    forms = (
        replace(form, compiled=compiled) if form.backend == "fused" else form
        for form in point.forms
    )
    return replace(explanation, points=(replace(point, forms=tuple(forms)),))


def compile_launches(launch: Callable[[], object], device: DeviceProfile) -> tuple[Compiled, ...]:
    """Compile what `launch` launches, and run nothing of it."""
    major, minor = device.capability
    with compiling_for(10 * major + minor) as made:
        launch()
    return tuple(_compiled(name, kernel, device) for name, kernel in made)


class _MlpCompiler:
    """Compiles plans of one MLP, on matrices whose memory is never touched."""

    def __init__(self, shape: MlpShape, dtype: DType, device: DeviceProfile) -> None:
        self._dtype = dtypes.to_torch(dtype)
        self._shape = shape
        self._device = device
        hidden, intermediate = shape.hidden, shape.intermediate
        self._weights = MlpWeights(
            self._matrix(2 * intermediate, hidden),
            self._matrix(hidden, intermediate),
            Activation.SILU,
        )

    def compile(self, plan: Plan, rows: int) -> tuple[Compiled, ...]:
        """Our own launches of a plan; a library's kernels are the library's."""
        x, out = (self._matrix(rows, self._shape.hidden) for _ in range(2))
        h = self._matrix(rows, self._shape.intermediate)
        # A launcher of its own: one that has launched a tile before does not go by the compiler again.
        launcher = Launcher(self._weights, self._device)

        def launch() -> None:
            if plan.algorithm is Algorithm.TEXTBOOK:
                launcher.run(plan, x, out)
                return
            if plan.gate_up is not None:
                launcher.gate_up(x, h, plan.gate_up, plan.overlap)
            if plan.down is not None:
                launcher.down(h, out, plan.down, plan.overlap)

        return compile_launches(launch, self._device)

    def _matrix(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=self._dtype)


def _compiled(name: str, made: Any, device: DeviceProfile) -> Compiled:
    found = resources_of(made)
    return Compiled(
        kernel=name,
        registers=found.registers,
        stack_bytes=found.stack_bytes,
        shared_bytes=found.shared_bytes,
        warps=found.warps,
        occupancy=occupancy(device.capability, found.registers, found.shared_bytes, found.warps),
    )
