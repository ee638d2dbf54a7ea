"""The arguments of `gatefuse tune`, and what its exit statuses say."""

from __future__ import annotations

import argparse
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from gatefuse.cli import main
from gatefuse.commands import tune
from gatefuse_kernels.errors import BackendUnavailableError, PlanTableError
from gatefuse_kernels.plan import KNOWN_DEVICES, PlanTable
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning import run as tuning
from gatefuse_kernels.tuning.merging import OutputError, write_table
from gatefuse_kernels.tuning.search import ROWS
from gatefuse_kernels.tuning.stopwatch import NoMemoryError, WrongAnswerError

LEAST = ["tune", "--shape", "64x96", "--output", "table.json"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuning.TuneOptions]:
    """What the command would tune; nothing is."""
    options: list[tuning.TuneOptions] = []
    monkeypatch.setattr(tuning, "tune", lambda given, say: options.append(given))
    return options


def test_defaults(asked: list[tuning.TuneOptions]) -> None:
    assert main(LEAST) == 0
    [options] = asked
    assert options.shapes == (MlpShape(64, 96),)
    assert (options.dtype, options.rows) == (DType.BF16, ROWS)
    assert options.output == Path("table.json")
    assert options.jobs >= 0


def test_several_shapes_and_rows(asked: list[tuning.TuneOptions]) -> None:
    arguments = ["--rows", "64, 1,64,16", "--dtype", "fp16", "--jobs", "3"]
    assert main([*LEAST[:2], "64x96,128x256,64x96", *LEAST[3:], *arguments]) == 0
    [options] = asked
    assert options.shapes == (MlpShape(64, 96), MlpShape(128, 256))
    assert (options.rows, options.dtype, options.jobs) == ((1, 16, 64), DType.FP16, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "--output", "x"],
        ["tune", "--shape", "64x96"],
        ["tune", "--shape", "64", "--output", "x"],
        ["tune", "--shape", "64x0", "--output", "x"],
        [*LEAST, "--rows", "0"],
        [*LEAST, "--rows", "a"],
        [*LEAST, "--dtype", "fp8"],
        [*LEAST, "--jobs", "-1"],
        [*LEAST, "--jobs", "many"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: gatefuse tune" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BackendUnavailableError("no device"), 69),
        (WrongAnswerError("wrong"), 1),
        (PlanTableError("broken"), 78),
        (ValueError("another device"), 78),
        (KeyboardInterrupt(), 130),
        (NoMemoryError("64x96 bf16: CUDA out of memory"), 71),
        (MemoryError(), 71),
        (OutputError("table.json cannot be written: No space left on device"), 73),
        (multiprocessing.TimeoutError(), 70),
        (OSError("no more processes"), 70),
        (RuntimeError("CUDA error: an illegal memory access"), 70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_statuses(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(tuning, "tune", fail)
    assert main(LEAST) == status
    told = capsys.readouterr().err
    assert (str(error) or "table.json ") in told.splitlines()[-1]
    assert ("Traceback" in told) == (type(error) is RuntimeError), "a fault of the program's"


def test_every_status_is_listed() -> None:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    statuses = {value for name, value in vars(tune).items() if name.startswith("EXIT_")} | {
        0,
        2,
    }
    listed = parser.format_help().partition("exit status: ")[2]
    assert {int(number) for number in re.findall(r"(?:^|[;\n]) ?(\d+) ", listed)} == statuses


@pytest.mark.parametrize(
    ("shape", "output", "status", "text"),
    [
        ("64x96,64x97", "table.json", 78, "64x97 bf16 has rows that do not start on 16 bytes"),
        ("64x96", "file/table.json", 73, "table.json cannot be written"),
        ("64x96", "folder", 78, "Is a directory"),
        ("64x96", "of_l4.json", 78, "measured on NVIDIA L4"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_measured(
    shape: str,
    output: str,
    status: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    l4 = KNOWN_DEVICES["nvidia-l4"]
    write_table(PlanTable(l4.name, l4.capability, 58, ()), tmp_path / "of_l4.json")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(tuning, "profile_of", lambda device: KNOWN_DEVICES["nvidia-h200"])
    monkeypatch.setattr(tuning, "Compilers", None)
    assert main(["tune", "--shape", shape, "--output", str(tmp_path / output)]) == status
    told = capsys.readouterr().err
    assert text in told
    assert "Traceback" not in told


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said: list[str] = []
    monkeypatch.setattr(tune, "_say", said.append)
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    output = tmp_path / "table.json"
    options = parser.parse_args(["--shape", "64x96", "--output", str(output)])
    assert tune.run(options) == 69
    assert said == ["tuning needs a CUDA device"]
    assert not output.exists()
