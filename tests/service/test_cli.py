"""The command: what it returns, and what it says when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gatefuse import __version__, cli

GOOD = "models: [{name: ffn, random: {hidden: 8, intermediate: 16}}]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gatefuse {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["sing"], ["serve"], ["serve", "c.yaml", "--port", "1"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: gatefuse" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["serve", "models", "loadtest", "demo", "bench", "explain", "audit", "tune"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: gatefuse {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("grpc_port: 70000", "gatefuse: grpc_port: "),
        ("prot: 1", "gatefuse: prot: "),
        ("workers: 0", "gatefuse: workers: "),
        ("[", "not valid YAML"),
    ],
)
def test_a_bad_configuration(
    config: Path, change: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(GOOD + change)
    assert cli.main(["serve", str(config)]) == 78
    out, err = capsys.readouterr()
    assert text in err
    assert out == ""


def test_a_missing_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(tmp_path / "none.yaml")]) == 78
    assert "none.yaml: No such file" in capsys.readouterr().err
    assert cli.main(["demo", "--config", str(tmp_path / "none.yaml")]) == 78
    assert "none.yaml: No such file" in capsys.readouterr().err


def test_a_bad_override(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(config), "--metrics-port", "-1"]) == 78
    assert "gatefuse: metrics_port: " in capsys.readouterr().err


def test_models_of_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--url", "127.0.0.1:1"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("gatefuse: 127.0.0.1:1: UNAVAILABLE")
    assert out == ""


def _without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command where `module` is not installed."""
    program = (
        f"import sys; sys.modules[{module!r}] = None; from gatefuse import cli; "
        f"sys.exit(cli.main({list(arguments)}))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", ["yaml", "pydantic"])
@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_missing_extra_is_named(module: str, command: str, config: Path) -> None:
    arguments = ["serve", str(config)] if command == "serve" else ["demo", "--config", str(config)]
    result = _without(module, *arguments)
    assert result.returncode == 78
    expected = f"gatefuse: {module} is missing: pip install 'gatefuse[server]'\n"
    assert result.stderr == expected


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("gatefuse.lifecycle", ("serve", "none.yaml")),
        ("gatefuse_kernels.audit.report", ("serve", "none.yaml")),
        ("gatefuse_protos.open_inference_pb2", ("demo",)),
        ("gatefuse_kernels.bench.cases", ("bench", "kernels")),
        ("gatefuse_kernels.explain.measuring", ("explain", "--expression", "x + 1")),
    ],
)
def test_a_missing_module_of_ours_is_our_fault(module: str, arguments: tuple[str, ...]) -> None:
    result = _without(module, *arguments)
    assert result.returncode == 70
    assert "pip install" not in result.stderr
    assert "ModuleNotFoundError" in result.stderr
    assert module in result.stderr


def test_the_bench_needs_torch() -> None:
    result = _without("torch", "bench", "kernels")
    assert result.returncode == 78
    assert result.stderr == "gatefuse: torch is missing: pip install 'gatefuse[server]'\n"


def test_the_base_install_has_the_command() -> None:
    result = _without("torch", "models", "--url", "127.0.0.1:1")
    assert result.returncode == 1
    assert "UNAVAILABLE" in result.stderr
