"""Reads the YAML file, fills in `like`, and makes paths absolute; the value types check the rest."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gatefuse.config.errors import ConfigError, readable
from gatefuse.config.service import ServiceConfig
from gatefuse_kernels.expression import names_in


class _EachKeyOnce(yaml.SafeLoader):
    """The safe loader, but a key given twice is an error and does not hide the first."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """See `yaml.composer.Composer`."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key '{key.value}' is given twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node


def load_config(path: Path) -> ServiceConfig:
    """Reads and checks a configuration file; paths in it are relative to the file's own folder.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule; the text names the key.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _EachKeyOnce)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    return parse_config(raw, base=path.parent)


def parse_config(raw: object, base: Path) -> ServiceConfig:
    """Checks an already parsed configuration; `base` is the folder relative paths start from."""
    if not isinstance(raw, dict):
        raise ConfigError("the configuration must be a mapping with a 'models' list")
    models = raw.get("models")
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ConfigError("models: must be a list of mappings")
    resolved = [_with_paths(model, base) for model in _expand_like(models)]
    top = _absolute(_absolute(raw, "plan_table", base), "trace_file", base)
    try:
        return ServiceConfig.model_validate({**top, "models": resolved})
    except ValidationError as error:
        raise ConfigError(readable(error)) from error


def _expand_like(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fills a model that says `like: other` with what the other says, its own keys winning."""
    by_name: dict[str, dict[str, Any]] = {}
    expanded = []
    for position, model in enumerate(models):
        own = {key: value for key, value in model.items() if key != "like"}
        parent_name = model.get("like")
        if parent_name is not None:
            parent = by_name.get(str(parent_name))
            if parent is None:
                raise ConfigError(
                    f"models.{position}.like: no model above is named '{parent_name}'"
                )
            model = {**parent, **own}
        by_name[str(model.get("name"))] = model
        expanded.append(model if parent_name is None else _without_unused(model, own))
    return expanded


def _without_unused(model: dict[str, Any], own: Container[str]) -> dict[str, Any]:
    """The model without the constants that only its parent's expression has a use for."""
    constants, expression = model.get("constants"), model.get("expression")
    if "constants" in own or not isinstance(constants, dict) or not isinstance(expression, str):
        return model
    names = names_in(expression)
    return {**model, "constants": {name: each for name, each in constants.items() if name in names}}


def _with_paths(model: dict[str, Any], base: Path) -> dict[str, Any]:
    """The model with every path in it starting from `base`."""
    model = _absolute(model, "checkpoint", base)
    constants = model.get("constants")
    if not isinstance(constants, dict):
        return model
    located = {
        name: _absolute(value, "file", base) if isinstance(value, dict) else value
        for name, value in constants.items()
    }
    return {**model, "constants": located}


def _absolute(mapping: dict[str, Any], key: str, base: Path) -> dict[str, Any]:
    """The mapping with the path under `key`, if there is one, starting from `base`."""
    path = mapping.get(key)
    if path is None:
        return mapping
    return {**mapping, key: (base / Path(str(path)).expanduser()).resolve()}
