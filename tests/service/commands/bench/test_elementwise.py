"""`gatefuse bench elementwise`: what it accepts, what it writes, and how it ends."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernels.bench.chains.examples import chain_of, report, result

from gatefuse import cli
from gatefuse.commands.bench import command, elementwise
from gatefuse_kernels.bench.chains import run as run_module
from gatefuse_kernels.bench.chains.cases import CHAINS, OWN, Chain
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import ChainReport, LaunchCheck
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.shapes import DType

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

Keep = Callable[[ChainReport], None]


def options_of(*arguments: str) -> ChainOptions:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return elementwise.options_of(parser.parse_args(["elementwise", *arguments]))


def test_everything_by_default() -> None:
    options = options_of()
    assert options.chains == CHAINS
    assert (options.dtypes, options.elements) == ((DType.BF16, DType.FP32), 100_000_000)


def test_a_selection() -> None:
    options = options_of(
        *("--chains", "silu_gate, one_op", "--dtype", "fp16", "--elements", "2M"),
        *("--rounds", "10", "--budget", "7"),
    )
    chains = (chain_of("one_op"), chain_of("silu_gate"))
    assert options == ChainOptions(chains, (DType.FP16,), 2_000_000, 10, 7)


OWN_CHAIN = Chain(OWN, "x * w + 1", vectors=("w",))


@pytest.mark.parametrize(
    ("arguments", "chains"),
    [
        ((), (OWN_CHAIN,)),
        (("--chains", "one_op"), (chain_of("one_op"), OWN_CHAIN)),
        (("--chains", "none"), (OWN_CHAIN,)),
        (("--chains", "all"), (*CHAINS, OWN_CHAIN)),
    ],
)
def test_a_chain_of_ones_own(arguments: tuple[str, ...], chains: tuple[Chain, ...]) -> None:
    own = ("--expression", "x * w + 1", "--vectors", "w")
    assert options_of(*own, *arguments).chains == chains


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--chains", "gelu"], "unknown chain 'gelu': use all, none, or some of one_op,"),
        (["--chains", "none"], "nothing to measure"),
        (["--dtype", "bf16,fp8"], "unknown type 'fp8'"),
        (["--elements", "1.5"], "in 1..4398046511104, not '1.5'"),
        (["--elements", "many"], "a number of elements such as 100M, got 'many'"),
        (["--rounds", "9"], "an integer from 10, got '9'"),
        (["--expression", "x +"], "--expression: "),
        (["--expression", "open(x)"], "--expression: "),
        (["--expression", "x"], "a copy computes nothing"),
        (["--vectors", "w"], "--vectors belongs to --expression"),
    ],
)
def test_bad_selections_are_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "elementwise", *arguments])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["bench", "elementwise"]) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gatefuse bench: no CUDA device: chains are measured on a GPU\n"


def test_the_report_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chains.json"

    def measure(options: ChainOptions, say: Callable[[str], None], keep: Keep) -> ChainReport:
        keep(report(result("one_op", 300.0)))
        assert len(json.loads((tmp_path / "chains.json.partial").read_text())["results"]) == 1
        return report(result("one_op", 300.0), result("silu_gate", 290.0))

    monkeypatch.setattr(run_module, "run_chains", measure)
    assert cli.main(["bench", "elementwise", "--json", str(path)]) == 0
    assert "silu_gate: silu(g) * u" in capsys.readouterr().out
    assert len(json.loads(path.read_text())["results"]) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["chains.json"]


def test_a_report_for_programs_is_printed_in_place_of_the_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "run_chains", lambda *_: report(result("one_op", 300.0)))
    assert cli.main(["bench", "elementwise", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 1
    assert not [*tmp_path.iterdir()]


def test_launches_that_nobody_counted_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(result("one_op", 300.0), launches=(LaunchCheck("one_op fp32", "fused", 1, 2),))
    monkeypatch.setattr(run_module, "run_chains", lambda *_: found)
    assert cli.main(["bench", "elementwise"]) == 1


def test_a_wrong_answer_leaves_what_was_measured_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(options: ChainOptions, say: Callable[[str], None], keep: Keep) -> ChainReport:
        keep(report(result("one_op", 300.0)))
        raise WrongAnswerError("silu_gate bf16: the fused form's error is 1.0e-01")

    monkeypatch.setattr(run_module, "run_chains", measure)
    assert cli.main(["bench", "elementwise", "--json", str(tmp_path / "chains.json")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gatefuse bench: silu_gate bf16: the fused form's error is 1.0e-01\n"
    assert [each.name for each in tmp_path.iterdir()] == ["chains.json.partial"]


def test_the_help_lists_every_status_and_chain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "elementwise", "--help"])
    out = capsys.readouterr().out
    text = out.partition("exit status: ")[2].partition("\n\n")[0]
    assert re.findall(r"\b\d+\b", text) == ["0", "1", "2", "69", "71", "73", "78"]
    for chain in CHAINS:
        assert f"  {chain.name} " in out
