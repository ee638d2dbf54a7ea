"""The command: what it returns, and what it says when something is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gatefuse import __version__, cli
from gatefuse.config import ServiceConfig, TracingConfig

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
    "command",
    [
        "serve",
        "models",
        "top",
        "infer",
        "loadtest",
        "demo",
        "bench",
        "explain",
        "audit",
        "tune",
        "completion",
    ],
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


def test_clients_memory_is_off_unless_asked_for(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []

    def serve(config: ServiceConfig, *_: object, **__: object) -> None:
        allowed.append(config.allow_client_shm)

    monkeypatch.setattr("gatefuse.driver.lifecycle.serve", serve)
    assert cli.main(["serve", str(config)]) == 0
    assert cli.main(["serve", str(config), "--allow-client-shm"]) == 0
    config.write_text(GOOD + "allow_client_shm: true\n")
    assert cli.main(["serve", str(config)]) == 0
    assert allowed == [False, True, True]


def test_where_spans_go_and_how_lines_look(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[ServiceConfig] = []
    monkeypatch.setattr("gatefuse.driver.lifecycle.serve", lambda config, *_: served.append(config))
    assert cli.main(["serve", str(config)]) == 0
    config.write_text(GOOD + "tracing: {sample_ratio: 0.5}\nlog_format: json\n")
    assert cli.main(["serve", str(config), "--otlp", "http://c:4318", "--log-format", "text"]) == 0
    off, on = served
    assert (off.tracing, off.log_format) == (None, "text")
    assert on.tracing == TracingConfig(endpoint="http://c:4318", sample_ratio=0.5)
    assert on.log_format == "text"


def test_a_collector_without_a_url(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(config), "--otlp", "collector:4317"]) == 78
    assert "gatefuse: tracing.endpoint: give a URL" in capsys.readouterr().err


def test_models_of_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--url", "localhost"]) == 2
    assert "not HOST:PORT" in capsys.readouterr().err
    assert cli.main(["models", "--url", "127.0.0.1:1"]) == 69
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
        ("gatefuse.driver.lifecycle", ("serve", "none.yaml")),
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
    assert result.returncode == 69
    assert "UNAVAILABLE" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("serve", "infer", "loadtest", "model-control", "datatype"):
        assert word in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    ask = (
        f"source {script}; COMP_WORDS=(gatefuse inf); COMP_CWORD=1; "
        '_shtab_gatefuse gatefuse inf gatefuse; echo "${COMPREPLY[@]}"'
    )
    found = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert found.stdout == "infer\n"


def test_completion_needs_its_extra() -> None:
    result = _without("shtab", "completion", "bash")
    assert result.returncode == 78
    assert result.stderr == "gatefuse: shtab is missing: pip install 'gatefuse[completion]'\n"
