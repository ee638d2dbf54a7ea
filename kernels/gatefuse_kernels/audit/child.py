"""The process under the counters: calls every case once at each row count, a marker ahead of each call.

    python -m gatefuse_kernels.audit.child CASES.json CALLS.json

Plans are those of the table that GATEFUSE_PLAN_TABLE names, else the shipped ones. Everything is
compiled and warm before it is called. What the ledger counted of each call goes to CALLS.json, with the
size of L2.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from gatefuse_kernels import dtypes
from gatefuse_kernels.audit.cases import (
    Call,
    Case,
    MlpCase,
    ProgramCase,
    call_to_json,
    case_of,
)
from gatefuse_kernels.backends import build_mlp
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import PlanTable, own_table
from gatefuse_kernels.traffic import KernelTraffic
from gatefuse_kernels.weights.packed import MlpWeights

_DEVICE = torch.device("cuda", 0)


class ListingLedger(Ledger):
    """Keeps every launch by itself and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[KernelTraffic] = []

    def count(self, traffic: KernelTraffic) -> None:
        """Remember one launch."""
        self.listed.append(traffic)


def main() -> None:
    """Run every case."""
    cases_path, calls_path = map(Path, sys.argv[1:])
    cases = [case_of(fields) for fields in json.loads(cases_path.read_text(encoding="utf-8"))]
    table = own_table(profile_of(_DEVICE))
    calls = [call for case in cases for call in _run(case, table)]
    l2_bytes: int = torch.cuda.get_device_properties(_DEVICE).L2_cache_size
    written = {"l2_bytes": l2_bytes, "calls": [call_to_json(call) for call in calls]}
    calls_path.write_text(json.dumps(written), encoding="utf-8")


def works(
    case: Case, ledger: Ledger, table: PlanTable | None = None
) -> Iterator[tuple[int, Callable[[], object]]]:
    """A call of the case at each of its row counts, on random values; `table` holds plans of MLPs."""
    return _mlp(case, ledger, table) if isinstance(case, MlpCase) else _program(case, ledger)


def _run(case: Case, table: PlanTable | None) -> Iterator[Call]:
    ledger = ListingLedger()
    for rows, work in works(case, ledger, table):
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        ledger.listed.clear()
        _count(work)
        yield Call(case.model, case.backend, rows, tuple(ledger.listed))


def _count(work: Callable[[], object]) -> None:
    """Call under the counters; they see the marker, then the call's kernels."""
    runtime = torch.cuda.cudart()
    runtime.cudaProfilerStart()
    torch.cuda._sleep(1)
    work()
    torch.cuda.synchronize()
    runtime.cudaProfilerStop()


def _mlp(
    case: MlpCase, ledger: Ledger, table: PlanTable | None
) -> Iterator[tuple[int, Callable[[], object]]]:
    hidden, intermediate = case.shape.hidden, case.shape.intermediate
    weights = MlpWeights(
        _normal(case, 2 * intermediate, hidden),
        _normal(case, hidden, intermediate),
        case.activation,
    )
    mlp = build_mlp(
        case.backend,
        weights,
        ledger=ledger,
        max_rows=case.max_rows,
        deterministic=case.deterministic,
        table=table,
    )
    x = _normal(case, max((case.max_rows, *case.rows)), hidden)
    out = torch.empty_like(x)
    for rows in case.rows or mlp.graph_buckets:
        yield rows, partial(mlp, x[:rows], out[:rows])


def _program(case: ProgramCase, ledger: Ledger) -> Iterator[tuple[int, Callable[[], object]]]:
    program, most = case.program, max(case.rows)
    runner = build_elementwise(
        case.backend,
        program,
        vectors={name: _normal(case, 1, case.columns)[0] for name in program.vectors},
        ledger=ledger,
        dtype=case.dtype,
        device=_DEVICE,
        max_rows=most,
        columns=case.columns,
    )
    inputs = [_normal(case, most, case.columns) for _ in program.inputs]
    outputs = [torch.empty_like(inputs[0]) for _ in program.outputs]
    for rows in case.rows:
        some = [[each[:rows] for each in tensors] for tensors in (inputs, outputs)]
        yield rows, partial(runner, *some)


def _normal(case: Case, rows: int, columns: int) -> torch.Tensor:
    """Values that keep unit rows near unit size."""
    made = torch.empty(rows, columns, dtype=dtypes.to_torch(case.dtype), device=_DEVICE)
    return made.normal_(0, 1 / math.sqrt(columns))


if __name__ == "__main__":
    main()
