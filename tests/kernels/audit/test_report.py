"""An audit's result as a file, and what a server reads of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kernels.audit import samples

from gatefuse_kernels import traffic
from gatefuse_kernels.audit.cases import Call
from gatefuse_kernels.audit.comparing import LaunchCount, compare
from gatefuse_kernels.audit.counters import calls_of, parse
from gatefuse_kernels.audit.report import AuditFileError, AuditReport, json_of, read_checks
from gatefuse_kernels.shapes import MlpShape

EQUAL = LaunchCount("ffn", 12, (16, 256), {"swiglu_gate_up": 12, "swiglu_down": 12}, {"a": 24})
FACTS = {"date": "2026-11-30", "device": "NVIDIA H200"}


def report(launches: LaunchCount = EQUAL) -> AuditReport:
    call = Call("ffn", "fused", 1, traffic.fused_mlp(MlpShape(4096, 14336), 1, 2))
    compared, wrong = compare([call], calls_of(parse(samples.ONE_CALL)))
    return AuditReport(FACTS, 1.7e9, 60 << 20, (launches,), tuple(compared), tuple(wrong))


def test_from_the_counters_to_a_server(tmp_path: Path) -> None:
    """The recorded bytes of an H200's gate_up and down, both larger than L2, are what the model says."""
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(json_of(report())))
    checks = read_checks(path)
    assert set(checks) == {"launches", "dram_read"}
    assert checks["launches"] == (1.0, 1.7e9)
    assert checks["dram_read"][0] == pytest.approx(1.0, abs=2e-3)


def test_everything_is_in_the_file() -> None:
    written = json_of(report())
    assert written["equal"] is True
    assert written["device"] == "NVIDIA H200"
    assert written["launches"][0]["buckets"] == (16, 256)
    first = written["kernels"][0]
    assert (first["kernel"], first["device_kernel"]) == ("swiglu_gate_up", samples.GATE_UP)
    assert first["dram_read_bytes"] == 234_900_224
    assert first["l2_read_bytes"] == 32 * 11_029_603


def test_a_difference_is_not_equal() -> None:
    differs = LaunchCount("ffn", 12, exported={"k": 24}, profiled={"a": 25})
    assert json_of(report(differs))["equal"] is False


def test_a_mismatch_under_the_counters_is_not_equal() -> None:
    call = Call("ffn", "fused", 1, traffic.eager_mlp(MlpShape(64, 96), 1, 2))
    _, wrong = compare([call], calls_of(parse(samples.ONE_CALL)))
    assert not AuditReport(FACTS, 0.0, 0, (EQUAL,), (), tuple(wrong)).is_equal


def test_without_counters_there_are_launches_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    alone = AuditReport(FACTS, 5.0, 0, (EQUAL,), bytes_note="ncu is not there")
    path.write_text(json.dumps(json_of(alone)))
    assert read_checks(path) == {"launches": (1.0, 5.0)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"checks": 3}',
        '{"checks": {"launches": 1}}',
        '{"checks": {"launches": {"ratio": "one", "timestamp_s": 0}}}',
        '{"checks": {"speed": {"ratio": 1, "timestamp_s": 0}}}',
    ],
)
def test_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(AuditFileError, match=r"other\.json"):
        read_checks(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AuditFileError, match="No such file"):
        read_checks(tmp_path / "none.json")
