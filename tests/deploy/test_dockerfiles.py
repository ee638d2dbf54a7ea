"""The images' instructions, and their commands run outside a container."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gatefuse.config import load_config

ROOT = Path(__file__).parents[2]
FILES = ["Dockerfile.cpu", "Dockerfile.cuda"]
CONSTRAINTS = {"Dockerfile.cpu": "constraints.txt", "Dockerfile.cuda": "constraints-cuda.txt"}


def instructions(name: str) -> list[tuple[str, str]]:
    """The file's (keyword, argument) pairs; continued lines are one instruction."""
    text = (ROOT / "deploy/docker" / name).read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(keyword, rest) for keyword, _, rest in (line.partition(" ") for line in lines)]


def argument(name: str, keyword: str) -> str:
    """The argument of the last instruction of this kind."""
    return [rest for found, rest in instructions(name) if found == keyword][-1]


def exec_form(text: str) -> list[str]:
    """The words of a command in exec form, which is JSON: a shell form does not parse."""
    words: list[str] = json.loads(text[text.index("[") :])
    return words


@pytest.mark.parametrize("name", FILES)
def test_everything_copied_is_in_the_repository_and_in_the_context(name: str) -> None:
    allowed = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    sources = [
        source
        for keyword, rest in instructions(name)
        if keyword == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(Path(source).match(pattern) for pattern in allowed), source


@pytest.mark.parametrize("name", FILES)
def test_it_installs_from_its_own_constraints(name: str) -> None:
    installs = [rest for keyword, rest in instructions(name) if "pip install" in rest]
    assert len(installs) == 2
    assert all(f"-c {CONSTRAINTS[name]} " in install for install in installs)


@pytest.mark.parametrize("name", FILES)
def test_the_process_is_pid_1_and_nobody_special(name: str) -> None:
    assert re.fullmatch(r"[1-9]\d*", argument(name, "USER"))
    assert exec_form(argument(name, "ENTRYPOINT")) == ["gatefuse"]
    assert argument(name, "STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("name", FILES)
def test_its_command_and_its_health_check_are_ones_that_the_program_has(name: str) -> None:
    serve = exec_form(argument(name, "CMD"))
    health = exec_form(argument(name, "HEALTHCHECK"))
    assert health[0] == "gatefuse"
    for command in (serve, health[1:]):
        # --help ends a parse that got so far: an unknown option before it would be an error.
        result = subprocess.run(
            [sys.executable, "-m", "gatefuse.cli", *command, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert result.returncode == 0, result.stderr
        for option in (word for word in command if word.startswith("--")):
            assert option in result.stdout
    assert load_config(ROOT / serve[1]).models
