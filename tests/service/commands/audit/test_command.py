"""`gatefuse audit`: how it ends, with stand-ins for the two processes that need a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kernels.audit import samples

from gatefuse import cli
from gatefuse.commands.audit import command
from gatefuse_kernels import traffic
from gatefuse_kernels.audit.cases import Call, call_to_json
from gatefuse_kernels.audit.report import read_checks
from gatefuse_kernels.plan import (
    KNOWN_DEVICES,
    PLAN_TABLE_VARIABLE,
    PlanTable,
    format_table,
)
from gatefuse_kernels.shapes import MlpShape

SHAPE = MlpShape(4096, 14336)
CONFIG = "models: [{name: ffn, random: {hidden: 4096, intermediate: 14336}, backend: fused}]\n"

# Stands in for ncu: finds where its child would write, writes it, and prints what ncu would.
FAKE_NCU = """\
#!{python}
import sys
from pathlib import Path
if {calls!r}:
    Path(sys.argv[-1]).write_text({calls!r})
print({output!r}, end="")
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU, and what serving under the profiler gives; a test may change it."""
    served: dict[str, Any] = {
        "facts": {"device": "NVIDIA H200"},
        "launches": [
            {
                "model": "ffn",
                "requests": 8,
                "buckets": [16],
                "exported": {"swiglu_gate_up": 8, "swiglu_down": 8},
                "profiled": {"swiglu_gate_up": 8, "swiglu_down": 8},
            }
        ],
    }
    monkeypatch.setattr(command, "gpu_profile", lambda: KNOWN_DEVICES["nvidia-h200"])
    monkeypatch.setattr(command, "_serve_profiled", lambda config, folder: served)
    return served


def fake_ncu(folder: Path, output: str, launches: int | None = 2) -> Path:
    """An executable that answers with `output`, its child having counted so many launches."""
    calls = ""
    if launches is not None:
        call = Call("ffn", "fused", 1, traffic.fused_mlp(SHAPE, 1, 2)[:launches])
        calls = json.dumps({"l2_bytes": 60 << 20, "calls": [call_to_json(call)]})
    path = folder / "fake-ncu"
    path.write_text(FAKE_NCU.format(python=sys.executable, calls=calls, output=output))
    path.chmod(0o755)
    return path


def test_no_gpu(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "gpu_profile", lambda: None)
    assert cli.main(["audit", str(config)]) == 69
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.usefixtures("on_a_gpu")
def test_launches_and_bytes(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ncu, result = fake_ncu(tmp_path, samples.ONE_CALL), tmp_path / "results" / "audit.json"
    status = cli.main(["audit", str(config), "--ncu", str(ncu), "--json", str(result)])
    out = capsys.readouterr().out
    assert status == 0
    assert "equal" in out
    assert "swiglu_gate_up" in out
    checks = read_checks(result)
    assert set(checks) == {"launches", "dram_read"}
    written = json.loads(result.read_text())
    assert str(tmp_path) not in result.read_text()
    assert [each["rows"] for each in written["kernels"]] == [1, 1]


def test_launches_that_differ(
    config: Path, on_a_gpu: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_gpu["launches"][0]["profiled"] = {"swiglu_gate_up": 8, "swiglu_down": 8, "copy": 1}
    assert cli.main(["audit", str(config), "--launches-only"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT" in out
    assert "1 copy" in out
    assert "launches 1.0625" in out


@pytest.mark.usefixtures("on_a_gpu")
def test_a_launch_that_only_the_counters_saw(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ncu = fake_ncu(tmp_path, samples.ONE_CALL, launches=1)
    assert cli.main(["audit", str(config), "--ncu", str(ncu)]) == 1
    assert "WRONG: ffn, 1 rows: 1 launches were counted" in capsys.readouterr().out


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(
    ("output", "launches", "words"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - no permission\n",
            None,
            "NVreg_RestrictProfilingToAdminUsers",
        ),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", 2, "NVreg_RestrictProfilingToAdminUsers"),
        ("==ERROR== The application returned an error code (1).\n", None, "an error code (1)"),
        (samples.output((samples.GATE_UP, samples.RAN_GATE_UP)), 2, "1 calls were made and 0 seen"),
    ],
)
def test_launches_alone_where_there_are_no_counters(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    output: str,
    launches: int | None,
    words: str,
) -> None:
    ncu = fake_ncu(tmp_path, output, launches)
    assert cli.main(["audit", str(config), "--ncu", str(ncu)]) == 0
    out = capsys.readouterr().out
    assert "bytes were not audited: " in out
    assert words in out


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("is_own", [True, False], ids=["the configuration's", "none"])
def test_bytes_are_of_the_plans_that_are_served(
    is_own: bool, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the service takes from its configuration, and never from the environment."""
    text = format_table(PlanTable("NVIDIA H200", (9, 0), 132, ()))
    (tmp_path / "own.json").write_text(text)
    monkeypatch.setenv(PLAN_TABLE_VARIABLE, "another.json")
    if is_own:
        config.write_text(f"plan_table: own.json\n{CONFIG}")
    seen = tmp_path / "seen"
    ncu = fake_ncu(tmp_path, samples.ONE_CALL)
    ncu.write_text(
        f"{ncu.read_text()}import os\nname = os.environ[{PLAN_TABLE_VARIABLE!r}]\n"
        f"Path({str(seen)!r}).write_text(Path(name).read_text() if name else '')\n"
    )
    assert cli.main(["audit", str(config), "--ncu", str(ncu)]) == 0
    assert seen.read_text() == (text if is_own else "")


@pytest.mark.usefixtures("on_a_gpu")
def test_no_ncu(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", str(config), "--ncu", "no-such-ncu"]) == 0
    assert "no-such-ncu is not there" in capsys.readouterr().out


@pytest.mark.usefixtures("on_a_gpu")
def test_a_result_that_cannot_be_written(config: Path, tmp_path: Path) -> None:
    assert cli.main(["audit", str(config), "--launches-only", "--json", str(tmp_path)]) == 73


@pytest.mark.usefixtures("on_a_gpu")
def test_a_bad_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("models: []\n")
    assert cli.main(["audit", str(path)]) == 78
    assert "name at least one model" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--rows", "0"), ("--rows", "1,"), ("--elements", "few")])
def test_wrong_usage(config: Path, option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["audit", str(config), *option])
    assert caught.value.code == 2


def test_serving_with_a_file_that_is_no_audit(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert cli.main(["serve", str(config), "--audit-file", str(other)]) == 78
    assert "other.json: not what `gatefuse audit --json` writes" in capsys.readouterr().err
