"""What the documents name exists: configuration keys, metrics, options, targets, files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from pydantic import BaseModel

from gatefuse.config import Batching, ModelConfig, ServiceConfig

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def table_keys(heading: str) -> set[str]:
    """The code-quoted names in the first column of the table under a heading cell."""
    table = OPERATIONS[OPERATIONS.index(heading) :].split("\n\n")[0]
    rows = table.splitlines()[2:]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("heading", "model", "not_in_schema"),
    [
        ("| key | default | meaning |\n|---|---|---|\n| `host`", ServiceConfig, set()),
        # `like` is replaced by what it stands for before the schema is applied.
        ("| key | default | meaning |\n|---|---|---|\n| `name`", ModelConfig, {"like"}),
        ("| key of `batching`", Batching, set()),
    ],
    ids=["service", "model", "batching"],
)
def test_the_reference_lists_every_configuration_key(
    heading: str, model: type[BaseModel], not_in_schema: set[str]
) -> None:
    assert table_keys(heading) - not_in_schema == set(model.model_fields)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_make_targets_exist(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)make ((?:[a-z-]+ ?)+)(?= |`|$)", text, re.M)
    assert {target for group in named for target in group.split()} <= set(targets)


def test_documented_metrics_exist(labels_of_series: dict[str, set[str]]) -> None:
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels_of_series}
    named = set(re.findall(r"`(gatefuse_(?!kernels|protos)\w+)`", OPERATIONS))
    assert len(named) > 15
    assert named <= families


def shell_lines() -> list[str]:
    """The `gatefuse` commands in the README's shell blocks and in its running text."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.S))
    lines = re.findall(r"^(?:\.venv/bin/)?gatefuse (.*)$", blocks, re.M)
    return lines + re.findall(r"`gatefuse ([^`]*)`", README)


@pytest.mark.parametrize("line", shell_lines())
def test_commands_in_the_readme_have_these_options(line: str) -> None:
    words = shlex.split(line, comments=True)
    # `bench kernels` is a command, `loadtest --url ...` and `serve FILE` are one and its arguments.
    command = list(takewhile(lambda word: word.isalpha() and word.islower(), words))
    result = subprocess.run(
        [sys.executable, "-m", "gatefuse.cli", *command, "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in result.stdout


def test_the_client_in_the_readme_is_python_and_its_names_exist() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    imports = "\n".join(line for line in block.splitlines() if re.match(r"from|import", line))
    compile(block, "README.md", "exec")
    exec(imports, {})
    assert len([line for line in block.splitlines() if line.strip()]) <= 10


HEAVY = ("torch", "ray", "rich", "uvloop", "pydantic", "yaml", "prometheus_client", "matplotlib")


@pytest.mark.parametrize(
    "module",
    ["gatefuse.client.blocking", "gatefuse.client.asynchronous", "gatefuse.wire", "gatefuse.cli"],
)
def test_the_base_install_is_enough_for(module: str) -> None:
    source = f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\nimport {module}"
    result = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
