"""The arguments of `gatefuse tune`, and what its exit statuses say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from gatefuse import tune_command
from gatefuse.cli import main
from gatefuse_kernels.errors import BackendUnavailableError, PlanTableError
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning import run as tuning
from gatefuse_kernels.tuning.search import ROWS
from gatefuse_kernels.tuning.stopwatch import WrongAnswerError

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
    assert (str(error) or "table.json has every class") in capsys.readouterr().err


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said: list[str] = []
    monkeypatch.setattr(tune_command, "_say", said.append)
    parser = argparse.ArgumentParser()
    tune_command.add_arguments(parser)
    output = tmp_path / "table.json"
    options = parser.parse_args(["--shape", "64x96", "--output", str(output)])
    assert tune_command.run(options) == 69
    assert said == ["tuning needs a CUDA device"]
    assert not output.exists()
