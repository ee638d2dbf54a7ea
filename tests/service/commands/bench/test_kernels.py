"""`gatefuse bench kernels`: what it accepts, what it writes, and how it ends."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernels.bench.examples import point, report

from gatefuse import cli
from gatefuse.commands.bench import command, kernels
from gatefuse_kernels.bench import run as run_module
from gatefuse_kernels.bench.cases import ROWS, SHAPES
from gatefuse_kernels.bench.errors import NoMemoryError, WrongAnswerError
from gatefuse_kernels.bench.options import PEERS, Options
from gatefuse_kernels.bench.results import Report
from gatefuse_kernels.shapes import DType, MlpShape


def options_of(*arguments: str) -> Options:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return kernels.options_of(parser.parse_args(["kernels", *arguments]))


def test_everything_by_default() -> None:
    options = options_of()
    assert (options.shapes, options.rows, options.peers) == (SHAPES, ROWS, PEERS)
    assert (options.dtype, options.elements) == (DType.BF16, 100_000_000)


def test_a_selection() -> None:
    options = options_of(
        *("--shapes", "256x688, 4096x14336", "--rows", "1,4,1", "--peers", "liger,eager"),
        *("--autotune-rows", "all", "--elements", "2K", "--dtype", "fp16", "--deterministic"),
        *("--compositions", "7", "--jobs", "3", "--budget", "500", "--rounds", "10"),
    )
    assert options == Options(
        shapes=(MlpShape(256, 688), MlpShape(4096, 14336)),
        rows=(1, 4),
        dtype=DType.FP16,
        rounds=10,
        peers=("eager", "liger"),
        autotune_rows=(1, 4),
        elements=2000,
        deterministic=True,
        compositions=7,
        jobs=3,
        budget_s=500,
    )


@pytest.mark.parametrize(("given", "peers"), [("all", PEERS), ("none", ()), ("eager", ("eager",))])
def test_peers(given: str, peers: tuple[str, ...]) -> None:
    assert options_of("--peers", given).peers == peers


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--shapes", "4096", "for example 4096x14336, not '4096'"),
        ("--shapes", "4096x", "not '4096x'"),
        ("--shapes", "0x5", "hidden must be in 1.."),
        ("--rows", "", "a row count is an integer in 1..16777216, not ''"),
        ("--rows", "1,0", "not '0'"),
        ("--rows", "1,-2", "not '-2'"),
        ("--rows", "99999999", "not '99999999'"),
        ("--autotune-rows", "some", "not 'some'"),
        ("--peers", "eager,triton", "unknown peer 'triton'"),
        ("--elements", "1.5M", "a number such as 100M, got '1.5M'"),
        ("--elements", "M", "got 'M'"),
        ("--elements", "9000G", "at most 4398046511104, got '9000G'"),
        ("--rounds", "1", "an integer from 10, got '1'"),
        ("--dtype", "fp8", "invalid choice: 'fp8'"),
    ],
)
def test_bad_selections_are_named(
    option: str, value: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "kernels", option, value])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["bench", "kernels"]) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gatefuse bench: no CUDA device: the kernels are measured on a GPU\n"


Bench = Callable[[Options, Callable[[str], None], Callable[[Report], None]], Report]


def replace_bench(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setattr(run_module, "run_bench", bench)


def test_the_report_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "kernels.json"
    unfinished = path.with_name("kernels.json.partial")

    def bench(
        options: Options, say: Callable[[str], None], keep: Callable[[Report], None]
    ) -> Report:
        keep(report(point(1, 80.0)))
        assert len(json.loads(unfinished.read_text())["points"]) == 1
        return report(point(1, 80.0), point(2, 80.0))

    replace_bench(monkeypatch, bench)
    assert cli.main(["bench", "kernels", "--json", str(path)]) == 0
    assert "4096x14336: one launch reads" in capsys.readouterr().out
    assert len(json.loads(path.read_text())["points"]) == 2
    assert not unfinished.exists()
    assert str(tmp_path) not in path.read_text()


def test_a_wrong_answer_leaves_what_was_measured_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench(
        options: Options, say: Callable[[str], None], keep: Callable[[Report], None]
    ) -> Report:
        keep(report(point(1, 80.0)))
        raise WrongAnswerError("ours, 4096x14336, 2 rows: the answer misses its accuracy gate")

    replace_bench(monkeypatch, bench)
    assert cli.main(["bench", "kernels", "--json", str(tmp_path / "kernels.json")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "gatefuse bench: ours, 4096x14336, 2 rows: the answer misses its accuracy gate\n"
    )
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name == "kernels.json.partial"
    assert len(json.loads(unfinished.read_text())["points"]) == 1


def test_too_little_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench(*_: object) -> Report:
        raise NoMemoryError("8x8, 1 rows: the GPU has too little memory")

    replace_bench(monkeypatch, bench)
    assert cli.main(["bench", "kernels"]) == 71
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gatefuse bench: 8x8, 1 rows: the GPU has too little memory\n"


@pytest.mark.parametrize(
    ("path", "why"),
    [("file/kernels.json", "File exists: {}/file"), ("folder", "Is a directory: {}/folder")],
)
def test_a_file_that_cannot_be_written_is_refused_before_measuring(
    path: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    replace_bench(monkeypatch, lambda *_: pytest.fail("measured"))
    assert cli.main(["bench", "kernels", "--json", str(tmp_path / path)]) == 73
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"gatefuse bench: cannot write {tmp_path / path}: {why.format(tmp_path)}\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_a_file_that_can_no_longer_be_written_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench(
        options: Options, say: Callable[[str], None], keep: Callable[[Report], None]
    ) -> Report:
        (tmp_path / "kernels.json.partial").mkdir()
        keep(report(point(1, 80.0)))
        return report(point(1, 80.0))

    replace_bench(monkeypatch, bench)
    assert cli.main(["bench", "kernels", "--json", str(tmp_path / "kernels.json")]) == 73
    out, err = capsys.readouterr()
    assert "4096x14336: one launch reads" in out
    assert err.count("cannot write") == 2


def test_the_help_lists_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "kernels", "--help"])
    text = capsys.readouterr().out.partition("exit status: ")[2].partition("\n\n")[0]
    assert re.findall(r"\b\d+\b", text) == ["0", "1", "2", "69", "71", "73", "78"]


def test_bits_that_change_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_bench(monkeypatch, lambda *_: report(point(1, 80.0, is_repeatable=False)))
    assert cli.main(["bench", "kernels"]) == 1
