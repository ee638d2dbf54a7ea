"""Text and JSON of a made-up run over chains."""

from __future__ import annotations

import json

from tests.kernels.bench.chains.examples import report, result

from gatefuse_kernels.bench.chains.report import json_of, text
from gatefuse_kernels.bench.chains.results import COMPILED, EAGER, LaunchCheck
from gatefuse_kernels.bench.results import PeerResult, State
from gatefuse_kernels.shapes import DType

GOOD = LaunchCheck("gelu_residual fp32", "fused", 1, 1)
BAD = LaunchCheck("gelu_residual fp32", EAGER, 3, 4)


def rows_of(found: str) -> list[str]:
    lines = found.splitlines()
    head = next(number for number, line in enumerate(lines) if line.lstrip().startswith("chain "))
    return [" ".join(line.split()) for line in lines[head + 1 : head + 3]]


def test_the_table() -> None:
    found = text(
        report(result("gelu_residual", 300.0), result("twelve_ops", 310.0, shorter_us=290.0))
    )
    assert rows_of(found) == [
        "gelu_residual fp32 3 3 300.0 299.0-302.0 4.00 285.0 0.950 300.0 1.000 640.0 7 2.13 - "
        "2.3e-03",
        "twelve_ops fp32 3 3 310.0 309.0-312.0 3.87 285.0 0.919 300.0 1.033 MISSED 640.0 7 2.06 "
        "1.069 MISSED 2.3e-03",
    ]
    assert "gelu_residual: gelu(x) * scale + residual" in found
    assert "99,991,552 elements in each tensor" in found
    assert "torch.compile: 1 of 2 limits met; MISSED: twelve_ops fp32 1.033" in found
    assert "copy bandwidth: 1 of 1 limits met" in found


def test_what_is_not_well_is_said() -> None:
    peers = {
        COMPILED: PeerResult(State.FAILED, "OutOfMemoryError"),
        EAGER: PeerResult(State.WRONG, "error 1.0e+00"),
    }
    made = report(
        result("gelu_residual", 300.0, peers=peers),
        launches=(GOOD, BAD),
        not_measured=("one_op fp16",),
    )
    assert made.problems == ("gelu_residual fp32, eager: 3 launches counted, 4 profiled",)
    lines = text(made).splitlines()[-6:]
    assert lines == [
        "launches: 1 of 1 limits met",
        "launches counted and profiled: 1 of 2 equal",
        "gelu_residual fp32, torch.compile: failed, OutOfMemoryError",
        "gelu_residual fp32, eager: wrong, error 1.0e+00",
        "PROBLEM: gelu_residual fp32, eager: 3 launches counted, 4 profiled",
        "not measured for want of time: one_op fp16",
    ]


def test_nothing_measured() -> None:
    assert text(report(not_measured=("one_op fp32",))).endswith(
        "not measured for want of time: one_op fp32"
    )


def test_json_holds_the_verdicts() -> None:
    made = report(result("silu_gate", 290.0, dtype=DType.BF16), launches=(GOOD, BAD))
    fields = json.loads(json.dumps(json_of(made)))
    (found,) = fields["results"]
    assert (found["dtype"], found["chain"]["text"]) == ("bf16", "silu(g) * u")
    assert (found["rows"], found["columns"]) == (6103, 16384)
    assert {verdict["line"]: verdict["is_met"] for verdict in found["verdicts"]} == {
        "copy bandwidth": True,
        "torch.compile": True,
        "launches": True,
    }
    assert fields["problems"] == list(made.problems)
    assert fields["launches"][1]["profiled"] == 4
