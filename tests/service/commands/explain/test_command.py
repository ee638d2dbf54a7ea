"""`gatefuse explain`: what it accepts, prints and draws, with nothing installed but the base."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from gatefuse import cli
from gatefuse_kernels.explain import measuring
from gatefuse_kernels.explain.roofs import find_device

MLP = ("--hidden", "4096", "--intermediate", "14336", "--device", "h200")
CHAIN = (
    *("--expression", "gelu(x) * scale + residual", "--constants", "scale=0.5", "--dtype", "fp32"),
    *("--bandwidth", "504GB/s", "--flops", "29TFLOP/s"),
)
QUICK = ("--no-compile", "--no-measure")

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from gatefuse import cli
sys.exit(cli.main(sys.argv[2:]))
"""
BASE_LACKS = "torch,triton,rich,matplotlib,ray,pydantic,yaml,prometheus_client,safetensors,jinja2"


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["explain", *arguments, *QUICK])
    return status, *capsys.readouterr()


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, err = explain(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_an_mlp(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, *MLP, "--rows", "256,1,1")
    assert [point["rows"] for point in found["points"]] == [1, 256]
    backends = {each["backend"]: each for each in found["points"][0]["backends"]}
    assert list(backends) == ["eager", "compiled", "fused", "textbook", "ideal"]
    assert (backends["eager"]["passes"], backends["ideal"]["passes"]) == (14, 5)
    assert backends["fused"]["kernels"][0]["reads"][1] == {
        "tensor": "gate",
        "bytes": 4096 * 14336 * 2,
        "trips": 1,
    }
    assert found["device"]["name"] == "NVIDIA H200"


def test_a_chain(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, *CHAIN)
    (point,) = found["points"]
    assert [(each["backend"], each["passes"]) for each in point["backends"]] == [
        ("eager", 7),
        ("compiled", 3),
        ("fused", 3),
    ]
    assert point["rows"] * point["columns"] == 100_000_000


def test_a_chain_with_a_vector(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--expression", "x * s", "--vectors", "s", "--elements", "10K", "--columns", "64")
    found = explained(capsys, *arguments)
    (point,) = found["points"]
    assert (point["rows"], point["columns"]) == (156, 64)
    reads = point["backends"][-1]["kernels"][0]["reads"]
    assert reads[1] == {"tensor": "s", "bytes": 128, "trips": 0}


def test_the_tables_hold_the_seeds_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = explain(capsys, *CHAIN)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["eager", "3", "7", "2.8", "GB", "700", "M", "0.25"] in [line[:8] for line in lines]
    assert ["fused", "1", "3", "1.2", "GB", "700", "M", "0.583"] in [line[:8] for line in lines]
    status, out, _ = explain(capsys, *MLP, "--rows", "1")
    assert status == 0
    assert "43 × and 15.2 GB" in " ".join(out.split())
    assert "32×x 32×gate 32×up down" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --hidden and --intermediate, or --expression"),
        (("--hidden", "4"), "give --hidden and --intermediate, or --expression"),
        ((*MLP, "--expression", "x"), "give --hidden and --intermediate, or --expression"),
        (("--expression", "x", "--rows", "3"), "--rows belongs to an MLP"),
        ((*MLP, "--source"), "--source belongs to an expression"),
        ((*MLP, "--elements", "3"), "--elements belongs to an expression"),
        (("--expression", "x", "--flops", "3T"), "given together"),
        ((*MLP, "--flops", "3T", "--bandwidth", "1GB/s"), "has its own roofs"),
        (
            ("--expression", "x", "--elements", "63", "--columns", "64"),
            "63 elements are less than a row of 64 columns",
        ),
        (("--expression", "open(x)"), "column 1: open is not a known function"),
        (("--expression", "x", "--source", "--json"), "--source and --json do not go together"),
        (
            ("--expression", "x", "--source", "--plot", "a.svg"),
            "--source and --plot do not go together",
        ),
        (("--expression", "x * w", "--constants", "W=2"), "constant 'W' is not used"),
        (("--expression", "x * w", "--vectors", "v,w"), "constant 'v' is not used"),
        (("--expression", "x + 1", "--constants", "scale=nan"), "scale"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = explain(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("gatefuse explain: ")
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu"), "known are nvidia-b200"),
        (("--bandwidth", "fast"), "504GB/s"),
        (("--rows", "0"), "a row count is an integer in 1.."),
        (("--rows", "1,x"), "a row count is an integer in 1.."),
        (("--hidden", "-1"), "a width is an integer in 1.."),
        (("--hidden", "²"), "a width is an integer in 1.."),
        (("--constants", "scale"), "scale=0.5"),
        (("--elements", "many"), "100M"),
        (("--plot", "roofs.pdf"), "FILE.svg or FILE.png"),
        (("--bandwidth", "504"), "which has no unit"),
        (("--constants", "a=1,a=2"), "a is given twice"),
        (("--vectors", "v,v"), "v is given twice"),
        (("--expression", "x", "--expression", "u"), "--expression is given twice"),
        (("--vectors", "a", "--vectors", "b"), "--vectors is given twice"),
    ],
)
def test_values_that_are_none(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["explain", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_what_cannot_be_measured_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor too large for this GPU, for one."""

    def measure(*_: object) -> None:
        raise RuntimeError("CUDA out of memory\nof which much more could be said")

    h200 = find_device("h200")
    monkeypatch.setattr(measuring, "gpu_profile", lambda: h200)
    monkeypatch.setattr(measuring, "measure_program", measure)
    status = cli.main(["explain", "--expression", "x * 2", "--no-compile", "--json"])
    out, err = capsys.readouterr()
    assert status == 0
    assert err == "gatefuse explain: nothing was measured: RuntimeError: CUDA out of memory\n"
    assert [each["measured"] for each in json.loads(out)["points"][0]["backends"]] == [None] * 3


def test_the_source_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = explain(capsys, "--expression", "silu(g) * u", "--source")
    assert (status, err) == (0, "")
    assert "def fused_elementwise(" in out
    compile(out, "generated", "exec")


@pytest.mark.parametrize("subject", [(*MLP, "--rows", "1,16,4096"), CHAIN], ids=["mlp", "chain"])
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_picture(
    subject: tuple[str, ...], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"roofs.{kind}"
    status, _, err = explain(capsys, *subject, "--plot", str(path))
    assert (status, err) == (0, f"wrote {path}\n")
    start = {"svg": b"<?xml", "png": b"\x89PNG"}[kind]
    assert path.read_bytes().startswith(start)


def test_the_same_picture_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No date and no random ids: a picture that is kept changes only with what it shows."""
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        explain(capsys, *CHAIN, "--plot", str(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("text", ["x", "fp16(x)"])
def test_no_picture_of_no_arithmetic(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "roofs.svg"
    status, out, err = explain(capsys, "--expression", text, "--plot", str(path))
    assert status == 2
    assert "fused_elementwise" in out
    assert err == f"gatefuse explain: {text} has no arithmetic to draw under a roof\n"
    assert not path.exists()


def test_a_picture_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "folder.svg"
    path.mkdir()
    status, _, err = explain(capsys, *CHAIN, "--plot", str(path))
    assert status == 73
    assert "cannot write" in err


def test_a_picture_in_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "roofs.svg"
    status, out, err = explain(capsys, *CHAIN, "--plot", str(path))
    assert (status, out) == (73, "")
    assert err == f"gatefuse explain: cannot write {path}: there is no folder {path.parent}\n"
    assert not path.parent.exists()


def test_an_expression_that_starts_with_a_minus(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("--expression", "-x**2"), ("--expression=-x**2",)):
        assert explained(capsys, *arguments)["subject"] == "-x**2"


def test_whole_rows_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--expression", "x * s", "--vectors", "s", "--elements", "10k")
    _, out, _ = explain(capsys, *arguments)
    assert "8.19 K elements: 2 rows of 4096 columns" in out


def printing_to(stdout: int | IO[bytes]) -> tuple[int, str]:
    """Status and stderr of the command with this stdout."""
    command = [sys.executable, "-m", "gatefuse.cli", "explain", *CHAIN, *QUICK]
    result = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    return result.returncode, result.stderr


def test_output_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert printing_to(writing) == (141, "")
    os.close(writing)


def test_output_that_has_no_room() -> None:
    with Path("/dev/full").open("wb") as full:
        status, err = printing_to(full)
    assert (status, err) == (73, "gatefuse explain: cannot print: No space left on device\n")


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where these packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, packages, "explain", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "subject", [MLP, CHAIN, (*CHAIN, "--source")], ids=["mlp", "chain", "source"]
)
def test_the_base_install_is_enough(subject: tuple[str, ...]) -> None:
    result = without(BASE_LACKS, *subject)
    assert (result.returncode, result.stderr) == (0, "")
    assert "residual" in result.stdout or "4096x14336" in result.stdout


def test_a_picture_without_matplotlib() -> None:
    result = without(BASE_LACKS, *CHAIN, "--plot", "never-written.svg")
    assert result.returncode == 78
    assert "--plot needs matplotlib" in result.stderr
    assert not Path("never-written.svg").exists()
