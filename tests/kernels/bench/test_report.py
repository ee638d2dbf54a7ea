"""Text and JSON of a made-up run."""

from __future__ import annotations

import json

from tests.kernels.bench.examples import point, report

from gatefuse_kernels.bench.cases import LLAMA_8B
from gatefuse_kernels.bench.report import json_of, text
from gatefuse_kernels.bench.results import Invariance


def test_tables() -> None:
    lines = text(report(point(1, 83.0), point(128, 94.0, host_us=41.5))).splitlines()
    assert lines[0] == "device: NVIDIA H200"
    assert lines[3] == (
        "4096x14336: one launch reads 352.0 MB at 4.40 TB/s (fast); a copy moves 4.00 TB/s"
    )
    assert [" ".join(line.split()) for line in lines[5:7]] == [
        "1 83.0 82.0-85.0 2 80.0 1.038 1.04 compiled 95.0 0.874 1.01 30.0 2.3e-03",
        "128 94.0 93.0-96.0 2 80.0 1.175 - compiled 95.0 0.989 0.97 MISSED 41.5 MISSED 2.3e-03",
    ]
    assert lines[8].split() == [
        "rows",
        "eager",
        "compiled",
        "max_autotune",
        "merged",
        "flash_swiglu",
        "liger",
    ]
    assert lines[9] == (
        "   1  100.0 (6)  95.0 (5)       not run   wrong        failed  not installed"
    )


def test_columns_line_up() -> None:
    lines = text(report(point(1, 83.0), point(4096, 12345.0))).splitlines()
    head, first, second = lines[4:7]
    assert head.index("read us") + len("read us") == first.index(" 80.0") + len(" 80.0")
    assert len(first) == len(second)


def test_what_is_not_well_is_said() -> None:
    shown = text(
        report(
            point(1, 90.0, is_repeatable=False),
            point(2, 83.0),
            invariance=(Invariance(LLAMA_8B, 1000, 512, 70_000, 3),),
            not_measured=("8192x28672",),
        )
    ).splitlines()
    assert "read floor: 1 of 2 limits met; MISSED: 4096x14336/1 1.125" in shown
    assert "host time: 2 of 2 limits met" in shown
    assert "copy bandwidth: 0 of 1 limits met; MISSED: bf16 0.940" in shown
    assert "PROBLEM: 4096x14336, 1 rows: the same call gave different bits" in shown
    assert "not measured for want of time: 8192x28672" in shown
    assert (
        "4096x14336, deterministic: 1000 random batches of up to 512 rows: "
        "3 of 70000 rows differ in bits"
    ) in shown


def test_the_deterministic_mode_has_its_table() -> None:
    shown = text(report(point(1, 80.0, deterministic_us=90.0), point(128, 94.0)))
    rows = [line.split() for line in shown.splitlines()]
    assert ["1", "90.0", "89.0-92.0", "2", "1.125", "1.10", "MISSED"] in rows
    assert ["128", *["-"] * 6] in rows


def test_json_has_everything() -> None:
    found = json.loads(json.dumps(json_of(report(point(1, 90.0, deterministic_us=95.0)))))
    assert found["facts"]["device"] == "NVIDIA H200"
    (one,) = found["points"]
    assert (one["shape"], one["rows"]) == ("4096x14336", 1)
    assert one["ours"]["time"] == {
        "median_us": 90.0,
        "p10_us": 89.0,
        "p90_us": 92.0,
        "rounds": 200,
    }
    assert one["kernels"] == {"swiglu_gate_up": 1, "swiglu_down": 1}
    assert one["peers"]["liger"] == {"state": "not installed", "reason": "", "measured": None}
    assert one["peers"]["eager"]["measured"]["launches"] == 6
    assert one["deterministic"]["time"]["median_us"] == 95.0
    verdicts = {verdict["line"]: verdict for verdict in one["verdicts"]}
    assert verdicts["read floor"] == {
        "line": "read floor",
        "value": 1.125,
        "limit": 1.04,
        "at_least": False,
        "is_met": False,
    }
    (floor,) = found["floors"]
    assert (floor["shape"], floor["reader"], floor["read_tb_per_s"]) == ("4096x14336", "fast", 4.4)
    assert found["gates"][0]["verdicts"][0]["line"] == "copy bandwidth"
    assert found["problems"] == []
