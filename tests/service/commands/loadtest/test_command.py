"""The whole load test: sending processes, the fake server, table, JSON and page."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from gatefuse.commands.conventions import EXIT_USAGE, EXIT_WRONG
from gatefuse.commands.loadtest.command import add_arguments, run

TRUTH = Path(__file__).resolve().parents[4] / "tiny-llama" / "hidden_states.safetensors"
QUICK = ("--seconds", "0.5", "--warm-up", "0.1")


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([*arguments, *QUICK]))


def _load(url: str, models: str, *arguments: str) -> int:
    return _run("--url", url, "--models", models, *arguments)


def test_right_answers_report_and_exit_status(
    fake_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = ("--json", str(tmp_path / "new" / "out.json"), "--html", str(tmp_path / "out.html"))
    load = ("--rows", "1,4", "--concurrency", "2", "--exact", str(TRUTH))
    assert _load(fake_url, "fused,eager", *load, *outputs) == 0
    text = capsys.readouterr().out
    assert "WRONG" not in text
    assert "fused against eager, rows 4, load 2: requests/s" in text
    assert "launches 0.40x, bytes 0.50x" in text

    result: dict[str, Any] = json.loads((tmp_path / "new" / "out.json").read_text(encoding="utf-8"))
    assert result["problems"] == []
    assert result["server"]["name"] == "fake"
    assert {"date", "command", "processor", "packages"} <= set(result["facts"])
    assert [(cell["cell"]["model"], cell["cell"]["rows"]) for cell in result["results"]] == [
        ("fused", 1),
        ("eager", 1),
        ("fused", 4),
        ("eager", 4),
    ]
    for cell in result["results"]:
        fused = cell["cell"]["model"] == "fused"
        # The fake server says that each request had half of its batch.
        assert cell["rows_per_batch"] == pytest.approx(2 * cell["cell"]["rows"])
        assert cell["launches_per_request"] == pytest.approx(1.0 if fused else 2.5)
        assert cell["bytes_per_request"] == pytest.approx(5e5 if fused else 1e6)
        assert cell["answers"]["rows"] >= cell["requests"] * cell["cell"]["rows"] > 0
        assert 0 < cell["answers"]["relative"] < 2.6e-3
        assert (cell["versus_first"]["rows"] == 0) == fused
    _check_page((tmp_path / "out.html").read_text(encoding="utf-8"))


def _check_page(page: str) -> None:
    assert "All right." in page
    for title in (
        "Requests per second",
        "Latency percentiles",
        "Latency distribution",
        "Rows per batch",
    ):
        assert f"<h3>{title}" in page
    assert page.count("<svg") == 6
    # Self-contained: nothing is fetched. The names of XML namespaces look like addresses and are none.
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert "@import" not in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("swapped", "rows are wrong"),
        ("sloppy", "the error over all rows is 0.01"),
        ("unlucky", "requests failed with RESOURCE_EXHAUSTED"),
    ],
)
def test_wrong_answers_and_failures_are_found(
    fake_url: str, model: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        _load(fake_url, model, "--rows", "4", "--concurrency", "2", "--exact", str(TRUTH))
        == EXIT_WRONG
    )
    assert f"WRONG: {model}, rows 4, load 2: " in (output := capsys.readouterr().out)
    assert text in output


@pytest.mark.parametrize(("model", "status"), [("eager", 0), ("swapped", EXIT_WRONG)])
def test_without_exact_answers_each_row_alone_is_the_measure(
    fake_url: str, model: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        _load(
            fake_url, f"fused,{model}", "--rows", "3", "--concurrency", "2", "--inputs", str(TRUTH)
        )
        == status
    )
    assert "rows checked against fused's answer to each row alone" in capsys.readouterr().out


def test_a_model_alone_is_checked_against_itself(fake_url: str) -> None:
    arguments = ("--rows", "3", "--concurrency", "2", "--layers", "1,2")
    assert _load(fake_url, "swapped", *arguments) == EXIT_WRONG
    assert _load(fake_url, "fused", *arguments) == 0


def test_open_loop_in_two_processes(fake_url: str, tmp_path: Path) -> None:
    arguments = (
        "--rate",
        "100",
        "--arrivals",
        "fixed",
        "--processes",
        "2",
        "--columns",
        "64",
        "--datatype",
        "FP16",
    )
    assert _load(fake_url, "identity", *arguments, "--json", str(tmp_path / "out.json")) == 0
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"][0]
    # Half a second of a hundred requests a second; an answer near an end may fall out.
    assert result["requests"] == pytest.approx(50, abs=8)
    assert result["cell"]["load"]["rate"] == 100


def test_more_processes_than_clients(fake_url: str) -> None:
    assert _load(fake_url, "identity", "--concurrency", "1", "--processes", "2") == 0


def test_without_checks_costs_are_still_reported(
    fake_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--rows",
        "4",
        "--concurrency",
        "1",
        "--no-check",
        "--json",
        str(tmp_path / "out.json"),
    )
    assert _load(fake_url, "swapped", *arguments) == 0
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"][0]
    assert result["launches_per_request"] == pytest.approx(2.5)
    assert result["answers"]["rows"] == 0
    assert "0 rows checked against nothing" in capsys.readouterr().out


def test_own_bound_on_the_error(fake_url: str) -> None:
    arguments = ("--rows", "2", "--concurrency", "1", "--exact", str(TRUTH))
    assert _load(fake_url, "sloppy", *arguments, "--max-error", "0.02") == 0
    assert _load(fake_url, "fused", *arguments, "--max-error", "1e-6") == EXIT_WRONG


@pytest.mark.parametrize(
    ("models", "arguments", "text"),
    [
        ("absent", (), "NOT_FOUND: no model 'absent'"),
        ("fused", ("--rate", "5", "--concurrency", "1"), "do not go together"),
        ("fused", ("--exact", "a", "--inputs", "b"), "do not go together"),
        ("fused", ("--no-check", "--max-error", "1"), "do not go together"),
        ("fused", ("--columns", "7"), "the models take rows of 256"),
        ("gate", ("--columns", "129"), "--columns 129: the models take rows of at most 128"),
        ("fused", ("--exact", "absent.safetensors"), "absent.safetensors"),
        ("fused", ("--exact", str(TRUTH), "--layers", "9"), r"no rows for layers [9]"),
    ],
    ids=["model", "rate", "exact", "check", "columns", "wide", "file", "layer"],
)
def test_what_cannot_be_run_says_why(
    fake_url: str,
    models: str,
    arguments: tuple[str, ...],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _load(fake_url, models, *arguments) == EXIT_USAGE
    assert text in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert _load("127.0.0.1:1", "fused", "--timeout", "1") == EXIT_USAGE
    assert "UNAVAILABLE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rows", "0"),
        ("--rows", "1,x"),
        ("--rate", "-1"),
        ("--rate", "0"),
        ("--seconds", "nan"),
        ("--layers", "-1"),
        ("--datatype", "INT8"),
        ("--models", "a,,b"),
        ("--models", "a,a"),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--models", "m", *arguments])
    assert caught.value.code == EXIT_USAGE
    assert f"argument {arguments[0]}" in capsys.readouterr().err


def test_no_process_stays(fake_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gatefuse.commands.loadtest.command.Progress.show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _load(fake_url, "fused", "--concurrency", "1", "--no-check", "--processes", "2")
    assert set(psutil.Process().children(recursive=True)) <= before


GATE = ("--rows", "1,5", "--concurrency", "2", "--columns", "24")


def test_an_expression_is_checked_against_float64(
    fake_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for datatype in ("FP32", "BF16"):
        assert _load(fake_url, "gate", *GATE, "--datatype", datatype) == 0
        text = capsys.readouterr().out
        assert "rows checked against the expression in float64" in text
        assert "WRONG" not in text


def test_rows_are_no_wider_than_the_model_takes(fake_url: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = ("--concurrency", "1", "--datatype", "bf16", "--json", str(path))
    assert _load(fake_url, "gate", *arguments) == 0


def test_a_wrong_answer_to_an_expression_is_found(
    fake_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _load(fake_url, "gate,gate-sloppy", *GATE) == EXIT_WRONG
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert wrong
    assert all(line.startswith("WRONG: gate-sloppy") for line in wrong)


@pytest.mark.parametrize(
    ("models", "options", "text"),
    [
        ("gate,identity", (), "the inputs of identity are x, not g, u"),
        ("identity,gate", (), "the inputs of gate are g, u, not x"),
        ("gate", ("--exact", str(TRUTH)), "for models of one input and one output"),
    ],
)
def test_models_and_options_that_do_not_go_together(
    fake_url: str,
    models: str,
    options: tuple[str, ...],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _load(fake_url, models, *options) == EXIT_USAGE
    assert text in capsys.readouterr().err
