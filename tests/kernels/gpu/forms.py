"""The ways to compute an MLP on a GPU that our own kernels have, each by a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import Algorithm, Overlap, Plan, PlanTable, Tile
from gatefuse_kernels.plan.table import Entry, MeasuredClass, Measurement
from gatefuse_kernels.shapes import MAX_ROWS, DType
from gatefuse_kernels.weights.packed import MlpWeights

CUDA = "cuda:0"

_SWAPPED = Tile(16, 64, 64, 4, 3, True)
_PLAIN = Tile(32, 32, 32, 4, 3, False)
_STREAMED = Tile(2, 4, 1024, 4, 1, False)
_DESCRIBED = Tile(64, 64, 32, 4, 3, False, descriptors=True)
_SPECIALIZED = Tile(64, 112, 64, 4, 3, False, group=2, descriptors=True, specialized=True)


def _two_launch(gate_up: Tile, down: Tile, overlap: Overlap = Overlap.NONE) -> Plan:
    return Plan(Algorithm.TWO_LAUNCH, gate_up, down, "a test's", overlap)


FORCED = {
    "swapped": _two_launch(_SWAPPED, _SWAPPED),
    "plain": _two_launch(_PLAIN, _PLAIN),
    "early": _two_launch(_SWAPPED, _SWAPPED, Overlap.EARLY),
    "late": _two_launch(_PLAIN, _PLAIN, Overlap.LATE),
    "split": _two_launch(_SWAPPED, replace(_SWAPPED, splits=3), Overlap.EARLY),
    "streamed": _two_launch(_STREAMED, _STREAMED, Overlap.EARLY),
    "descriptors": _two_launch(
        replace(_DESCRIBED, swapped=True, share_tail=True),
        replace(_DESCRIBED, splits=2),
        Overlap.LATE,
    ),
    "specialized": _two_launch(_SPECIALIZED, _DESCRIBED, Overlap.LATE),
    "two_warpgroups": _two_launch(
        replace(_SPECIALIZED, rows=128, columns=96, warps=8), _DESCRIBED, Overlap.EARLY
    ),
    "fused_gate_up": Plan(Algorithm.FUSED_GATE_UP, _SWAPPED, None, "a test's"),
    "library": Plan(Algorithm.LIBRARY, None, None, "a test's"),
}
"""A plan of each kind of kernel that `FusedMlp` can run, whatever the tables choose."""


def _by_backend(backend: str, deterministic: bool = False) -> Callable[[MlpWeights, int], Mlp]:
    return lambda weights, max_rows: build_mlp(
        backend, weights, ledger=Ledger(), max_rows=max_rows, deterministic=deterministic
    )


def _through_pointers(plan: Plan) -> Plan:
    """What is left of the plan in fp32, which no kernel takes through descriptors."""
    gate_up, down = (
        tile
        and replace(
            tile, columns=tile.parts[0], descriptors=False, share_tail=False, specialized=False
        )
        for tile in (plan.gate_up, plan.down)
    )
    return replace(plan, gate_up=gate_up, down=down)


def _forced(plan: Plan) -> Callable[[MlpWeights, int], Mlp]:
    def build(weights: MlpWeights, max_rows: int) -> Mlp:
        device = profile_of(weights.device)
        chosen = _through_pointers(plan) if weights.dtype is DType.FP32 else plan
        classes = (MeasuredClass(MAX_ROWS, chosen, None, None),)
        entry = Entry(weights.shape, weights.dtype, Measurement("", "", "", ""), classes)
        table = PlanTable(device.name, device.capability, device.multiprocessors, (entry,))
        return build_mlp("fused", weights, ledger=Ledger(), max_rows=max_rows, table=table)

    return build


MAIN: dict[str, Callable[[MlpWeights, int], Mlp]] = {
    "fused": _by_backend("fused"),
    "deterministic": _by_backend("fused", deterministic=True),
    "textbook": _by_backend("textbook"),
}
"""What a user can ask for."""

FORMS = {**MAIN, **{name: _forced(plan) for name, plan in FORCED.items()}}
"""Those, and each kind of kernel by itself. Widths off 16 bytes have one plan, which no table changes."""


def build(form: str, weights: MlpWeights, max_rows: int) -> Mlp:
    """Make the form's MLP, counting nowhere."""
    return FORMS[form](weights, max_rows)
