"""Every rule of the configuration file, broken one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gatefuse.config import ConfigError, ServiceConfig, load_config, parse_config
from gatefuse_kernels.shapes import DType

RANDOM = {"hidden": 8, "intermediate": 16}
MLP: dict[str, Any] = {"name": "ffn", "random": RANDOM}
ELEMENTWISE: dict[str, Any] = {"name": "scale", "kind": "elementwise", "expression": "x * 2"}
BASE = Path("/nowhere")


def _parse(*models: dict[str, Any], **top: Any) -> ServiceConfig:
    return parse_config({"models": list(models), **top}, BASE)


def _error(*models: dict[str, Any], **top: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        _parse(*models, **top)
    return str(caught.value)


def test_defaults() -> None:
    config = _parse(MLP)
    model = config.models[0]
    assert (config.host, config.grpc_port, config.metrics_port) == ("127.0.0.1", 8001, 8002)
    assert (config.frontends, config.worker_count, config.device) == (1, 1, "auto")
    assert (model.kind, model.backend, model.dtype) == ("swiglu", "auto", DType.BF16)
    assert (model.layers, model.replicas) == ("all", 1)
    batching = model.batching
    assert (batching.max_batch_rows, batching.max_queue_rows) == (256, 8192)
    assert (batching.max_queue_delay_us, batching.default_timeout_ms) == (0, 30_000)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "Ffn"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "-ffn"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"kind": "relu"}, "kind"),
        ({"backend": "fast"}, "backend"),
        ({"dtype": "fp8"}, "dtype"),
        ({"replicas": 0}, "replicas"),
        ({"layers": []}, "layers"),
        ({"layers": [0, -1]}, "layers"),
        ({"layers": "some"}, "layers"),
        ({"random": {"hidden": 0, "intermediate": 16}}, "random.hidden"),
        ({"random": {"hidden": 8}}, "random.intermediate"),
        ({"random": {**RANDOM, "layers": 0}}, "random.layers"),
        ({"random": {**RANDOM, "seed": -1}}, "random.seed"),
        ({"random": {**RANDOM, "depth": 2}}, "random.depth"),
        ({"batching": {"max_batch_rows": 0}}, "batching.max_batch_rows"),
        ({"batching": {"max_batch_rows": 65537}}, "batching.max_batch_rows"),
        ({"batching": {"max_queue_delay_us": -1}}, "batching.max_queue_delay_us"),
        ({"batching": {"max_queue_delay_us": 1_000_001}}, "batching.max_queue_delay_us"),
        ({"batching": {"max_queue_rows": 0}}, "batching.max_queue_rows"),
        ({"batching": {"default_timeout_ms": 0}}, "batching.default_timeout_ms"),
        ({"batching": {"priority_levels": 3}}, "batching: default_priority_level"),
        (
            {"batching": {"priority_levels": 3, "default_priority_level": 4}},
            "batching: default_priority_level",
        ),
        ({"batching": {"default_priority_level": 1}}, "batching: default_priority_level"),
        (
            {"batching": {"queue_policy": {"timeout_action": "wait"}}},
            "batching.queue_policy.timeout_action",
        ),
        (
            {"batching": {"queue_policy": {"max_queue_size": -1}}},
            "batching.queue_policy.max_queue_size",
        ),
        (
            {"batching": {"priority_queue_policy": {1: {}}}},
            "batching: priority_queue_policy: 1 is none of the 0 priority_levels",
        ),
        (
            {
                "batching": {
                    "priority_levels": 2,
                    "default_priority_level": 2,
                    "priority_queue_policy": {3: {}},
                }
            },
            "batching: priority_queue_policy: 3 is none of the 2 priority_levels",
        ),
        (
            {"batching": {"priority_queue_policy": {1: {"max_queue_size": -1}}}},
            "batching.priority_queue_policy.1.max_queue_size",
        ),
        ({"batching": {"max_batch_size": 3}}, "batching.max_batch_size"),
        ({"cuda_graphs": "perhaps"}, "cuda_graphs"),
        ({"deterministic": "perhaps"}, "deterministic"),
        ({"max_columns": 0}, "max_columns"),
        ({"widht": 8}, "widht"),
    ],
    ids=str,
)
def test_a_model_key_that_breaks_a_rule_is_named(change: dict[str, Any], key: str) -> None:
    assert _error({**MLP, **change}).startswith(f"models.0.{key}")


@pytest.mark.parametrize(
    ("top", "key"),
    [
        ({"grpc_port": -1}, "grpc_port"),
        ({"grpc_port": 65536}, "grpc_port"),
        ({"metrics_port": 65536}, "metrics_port"),
        ({"device": "tpu"}, "device"),
        ({"frontends": 0}, "frontends"),
        ({"frontends": 65}, "frontends"),
        ({"workers": 0}, "workers"),
        ({"worker_threads": 0}, "worker_threads"),
        ({"batch_timeout_s": 0}, "batch_timeout_s"),
        ({"drain_delay_s": -0.1}, "drain_delay_s"),
        ({"drain_timeout_s": 0}, "drain_timeout_s"),
        ({"max_message_bytes": 65535}, "max_message_bytes"),
        ({"max_message_bytes": 2**31}, "max_message_bytes"),
        ({"port": 1}, "port"),
    ],
    ids=str,
)
def test_a_top_level_key_that_breaks_a_rule_is_named(top: dict[str, Any], key: str) -> None:
    assert _error(MLP, **top).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"name": "ffn"}, "exactly one of 'checkpoint' and 'random'"),
        ({**MLP, "checkpoint": "there"}, "exactly one of 'checkpoint' and 'random'"),
        ({**MLP, "expression": "x"}, "'expression' belongs to kind: elementwise"),
        ({**MLP, "columns": 8}, "'columns' belongs to kind: elementwise"),
        ({"name": "scale", "kind": "elementwise"}, "needs an 'expression'"),
        ({**ELEMENTWISE, "random": RANDOM}, "has no 'checkpoint' or 'random' weights"),
        ({**ELEMENTWISE, "checkpoint": "there"}, "has no 'checkpoint' or 'random' weights"),
        ({**MLP, "outputs": ["y"]}, "'outputs' belongs to kind: elementwise"),
        ({**MLP, "constants": {"scale": 2}}, "'constants' belongs to kind: elementwise"),
        ({**ELEMENTWISE, "backend": "textbook"}, "backend 'textbook' is an MLP's"),
        (
            {**ELEMENTWISE, "deterministic": True},
            "'deterministic' belongs to the kinds with weights",
        ),
        ({**MLP, "deterministic": True, "backend": "eager"}, "needs backend: fused (or auto)"),
        ({**MLP, "deterministic": True, "backend": "compiled"}, "depends on the number of rows"),
        ({**MLP, "batching": {"max_batch_rows": 9, "max_queue_rows": 8}}, "max_queue_rows (8)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_that_contradict_each_other_are_told_apart(model: dict[str, Any], text: str) -> None:
    message = _error(model)
    assert message.startswith("models.0")
    assert text in message


def test_every_broken_rule_has_its_line() -> None:
    lines = _error({**MLP, "replicas": 0, "widht": 1}, grpc_port=-1).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "grpc_port",
        "models.0.replicas",
        "models.0.widht",
    ]


@pytest.mark.parametrize("raw", [None, [], "models", 3], ids=repr)
def test_a_file_that_is_no_mapping(raw: object) -> None:
    with pytest.raises(ConfigError, match="must be a mapping with a 'models' list"):
        parse_config(raw, BASE)


@pytest.mark.parametrize("models", [None, {}, "ffn", [1], [None]], ids=repr)
def test_models_that_are_no_list_of_mappings(models: object) -> None:
    with pytest.raises(ConfigError, match=r"^models: must be a list of mappings"):
        parse_config({"models": models}, BASE)


def test_no_models() -> None:
    assert _error().startswith("models: ")


def test_two_models_of_one_name() -> None:
    assert "two models are named 'ffn'" in _error(MLP, {**MLP})


def test_workers_below_the_replicas() -> None:
    message = _error({**MLP, "replicas": 3}, workers=2)
    assert "workers (2) is below the largest 'replicas' (3)" in message
    assert _parse({**MLP, "replicas": 3}, workers=3).worker_count == 3
    assert _parse({**MLP, "replicas": 3}).worker_count == 3


def test_several_frontends_need_a_port() -> None:
    assert "grpc_port" in _error(MLP, frontends=2, grpc_port=0)
    assert _parse(MLP, frontends=2, grpc_port=8001).frontends == 2


def test_like_fills_in_what_the_model_does_not_say() -> None:
    config = _parse(
        {**MLP, "batching": {"max_batch_rows": 4}, "layers": [1, 2]},
        {"name": "ffn-eager", "like": "ffn", "backend": "eager"},
        {"name": "ffn-third", "like": "ffn-eager", "batching": {}},
    )
    first, second, third = config.models
    assert (second.name, second.backend, second.layers) == ("ffn-eager", "eager", (1, 2))
    assert second.batching.max_batch_rows == 4
    assert second.weights_key == first.weights_key
    assert (third.backend, third.batching.max_batch_rows) == ("eager", 256)


@pytest.mark.parametrize("parent", ["missing", "later", "me", ["ffn"], {"a": 1}, 3], ids=repr)
def test_like_names_a_model_above(parent: object) -> None:
    later = {**MLP, "name": "later"}
    message = _error(MLP, {"name": "me", "like": parent}, later)
    assert message == f"models.1.like: no model above is named '{parent}'"


def test_weights_key_tells_weights_apart() -> None:
    other = {"name": "other", "random": {**RANDOM, "seed": 1}}
    checkpoint = {"name": "llama", "checkpoint": "llama"}
    scale_too = {**ELEMENTWISE, "name": "scale-too"}
    config = _parse(MLP, other, checkpoint, ELEMENTWISE, scale_too)
    assert len({model.weights_key for model in config.models}) == 5
    assert [model.is_mlp for model in config.models] == [True, True, True, False, False]


def test_a_checkpoint_is_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config" / "file.yaml"
    file.parent.mkdir()
    file.write_text(
        "models:\n"
        "  - {name: a, checkpoint: ../weights}\n"
        "  - {name: b, checkpoint: /weights}\n"
        "  - {name: c, checkpoint: 7b}\n"
    )
    paths = [model.checkpoint for model in load_config(file).models]
    assert paths == [tmp_path / "weights", Path("/weights"), tmp_path / "config" / "7b"]


def test_a_checkpoint_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = _parse({"name": "a", "checkpoint": "~/weights"})
    assert config.models[0].checkpoint == Path("/home/me/weights")


def test_a_plan_table_is_read_with_the_configuration(tmp_path: Path) -> None:
    table = tmp_path / "tables" / "mine.json"
    table.parent.mkdir()
    table.write_text(
        '{"device": "NVIDIA Mine", "capability": [9, 0], "multiprocessors": 8, "entries": []}'
    )
    file = tmp_path / "config.yaml"
    file.write_text("plan_table: tables/mine.json\nmodels: [{name: a, checkpoint: weights}]\n")
    config = load_config(file)
    assert config.plan_table is not None
    assert config.plan_table.device == "NVIDIA Mine"
    # What was read is kept: a file that changes does not change a running service.
    table.write_text("{")
    assert config.with_overrides({"grpc_port": 1}).plan_table is config.plan_table
    with pytest.raises(ConfigError, match=r"^plan_table: .*mine\.json: not JSON"):
        load_config(file)
    table.unlink()
    with pytest.raises(ConfigError, match=r"^plan_table: .*mine\.json: No such file"):
        load_config(file)
    assert _parse(MLP).plan_table is None


def test_deterministic() -> None:
    config = _parse(
        {**MLP, "deterministic": True}, {"name": "b", "like": "ffn", "backend": "fused"}
    )
    assert [model.deterministic for model in config.models] == [True, True]
    assert not _parse(MLP).models[0].deterministic


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"models: [", "not valid YAML"),
        (b"models: \xff", "not UTF-8"),
        (b"", "must be a mapping"),
    ],
    ids=["syntax", "encoding", "empty"],
)
def test_a_file_that_cannot_be_parsed(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=text):
        load_config(file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: No such file"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_overrides_replace_keys_and_are_checked() -> None:
    config = _parse(MLP, grpc_port=1, host="::1")
    changed = config.with_overrides({"grpc_port": 2, "metrics_port": 0})
    assert (changed.grpc_port, changed.metrics_port, changed.host) == (2, 0, "::1")
    assert changed.models == config.models
    assert config.with_overrides({}) == config
    with pytest.raises(ConfigError, match=r"^grpc_port: "):
        config.with_overrides({"grpc_port": 65536})
    with pytest.raises(ConfigError, match="several frontends"):
        _parse(MLP, frontends=2).with_overrides({"grpc_port": 0})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: []\nworkers: 1\nworkers: 2\n", "the key 'workers' is given twice"),
        ("models:\n  - {name: a, dtype: bf16, name: b}\n", "the key 'name' is given twice"),
    ],
)
def test_a_key_given_twice(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(path)
    assert "line" in str(caught.value)


def test_merged_keys_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "models:\n"
        "  - &a {name: a, random: {hidden: 8, intermediate: 16}, dtype: bf16}\n"
        "  - {<<: *a, name: b}\n"
    )
    assert [model.name for model in load_config(path).models] == ["a", "b"]
