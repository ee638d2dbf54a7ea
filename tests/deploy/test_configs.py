"""The shipped configurations are ones that the service accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatefuse.config import load_config

CONFIGS = Path(__file__).parents[2] / "deploy" / "config"
NAMES = sorted(path.name for path in CONFIGS.glob("*.yaml"))


def test_there_is_one_for_each_kind_of_machine() -> None:
    assert NAMES == ["cpu.yaml", "demo.yaml", "identity.yaml", "one-gpu.yaml", "several-gpus.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_config_loads_and_its_checkpoints_are_there(name: str) -> None:
    config = load_config(CONFIGS / name)
    for model in config.models:
        if model.checkpoint is not None:
            assert (model.checkpoint / "config.json").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_config_listens_on_loopback_unless_told_otherwise(name: str) -> None:
    assert load_config(CONFIGS / name).host == "127.0.0.1"


def test_the_demo_runs_the_same_weights_three_ways() -> None:
    models = [model for model in load_config(CONFIGS / "demo.yaml").models if model.is_mlp]
    assert [(model.name, model.backend) for model in models] == [
        ("llama-ffn", "fused"),
        ("llama-ffn-eager", "eager"),
        ("llama-ffn-compiled", "compiled"),
    ]
    assert len({model.weights_key for model in models}) == 1


def test_the_demo_has_three_chains_fused_beside_eager() -> None:
    chains = [model for model in load_config(CONFIGS / "demo.yaml").models if not model.is_mlp]
    backends: dict[str, list[str]] = {}
    for model in chains:
        backends.setdefault(model.program.text, []).append(model.backend)
    assert len(backends) == 3
    assert all(found == ["fused", "eager"] for found in backends.values())


def test_several_gpus_has_several_of_both() -> None:
    config = load_config(CONFIGS / "several-gpus.yaml")
    assert config.worker_count >= 2
    assert config.frontends >= 2
