"""Reads a board by the classes that Grafana publishes for its own formats, strictly.

The classes' own readers take what they know and pass over the rest. Here a key that is not theirs and a value that is
not of their type is refused: Grafana would show a panel other than the one that was meant, or none.
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from typing import Any

from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import panelcfg_config
from grafana_foundation_sdk.models import dashboard, prometheus
from grafana_foundation_sdk.models import units as grafana_units

register_default_plugins()

UNITS = {
    value
    for name, value in vars(grafana_units).items()
    if not name.startswith("_") and isinstance(value, str)
}


class SchemaError(Exception):
    """Grafana would not take this; the text begins with the place."""


def check_board(board: dict[str, Any]) -> None:
    """Refuses what is no dashboard.

    Raises:
        SchemaError: a key or value that Grafana does not know.
    """
    panels = board["panels"]
    _check_object({**board, "panels": []}, dashboard.Dashboard, "board")
    for number, panel in enumerate(panels):
        place = f"panels[{number}]"
        if panel.get("type") == "row":
            _check_object(panel, dashboard.RowPanel, place)
        else:
            _check_panel(panel, place)


def _check_panel(panel: dict[str, Any], place: str) -> None:
    config = panelcfg_config(panel.get("type", ""))
    if config is None:
        raise SchemaError(f"{place}.type: no panel is called {panel.get('type')!r}")
    own = {key: value for key, value in panel.items() if key not in ("targets", "options")}
    _check_object(own, dashboard.Panel, place)
    _check_object(panel["options"], _class_of(config.options_from_json_hook), f"{place}.options")
    field = panel["fieldConfig"]["defaults"]
    if field.get("unit") not in UNITS:
        raise SchemaError(f"{place}: no unit is called {field.get('unit')!r}")
    if "custom" in field:
        custom = _class_of(config.field_config_from_json_hook)
        _check_object(field["custom"], custom, f"{place}.custom")
    for number, target in enumerate(panel["targets"]):
        _check_object(target, prometheus.Dataquery, f"{place}.targets[{number}]")


def _class_of(hook: Any) -> type:
    """The class whose reader this is; a panel without one takes nothing of that kind."""
    return hook.__self__ if inspect.ismethod(hook) and isinstance(hook.__self__, type) else object


def _check_object(value: Any, kind: type, place: str) -> None:
    if not isinstance(value, dict):
        raise SchemaError(f"{place}: {value!r} is no {kind.__name__}")
    hints = typing.get_type_hints(kind)
    keys = {_key(attribute): hint for attribute, hint in hints.items()}
    for key, one in value.items():
        if key not in keys:
            raise SchemaError(f"{place}.{key}: {kind.__module__}.{kind.__name__} has no such key")
        _check(one, keys[key], f"{place}.{key}")


def _key(attribute: str) -> str:
    """The JSON key of a class's attribute: `display_mode` is displayMode, `type_val` is type."""
    first, *rest = attribute.removesuffix("_val").split("_")
    return first + "".join(word.capitalize() for word in rest)


def _check(value: Any, hint: Any, place: str) -> None:
    if hint is object or hint is Any:
        return
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        _check_union(value, arguments, place)
    elif origin is typing.Literal:
        _demand(value in arguments, value, hint, place)
    elif origin is list:
        _demand(isinstance(value, list), value, hint, place)
        for number, one in enumerate(value):
            _check(one, arguments[0], f"{place}[{number}]")
    elif origin is dict:
        _demand(isinstance(value, dict), value, hint, place)
    elif issubclass(hint, enum.Enum):
        _demand(any(value == member.value for member in hint), value, hint, place)
    elif hint in (str, bool, int, float, type(None)):
        numbers = (int, float) if hint is float else hint
        fits = isinstance(value, numbers) and (hint is bool or not isinstance(value, bool))
        _demand(fits, value, hint, place)
    else:
        _check_object(value, hint, place)


def _check_union(value: Any, kinds: tuple[Any, ...], place: str) -> None:
    errors = []
    for kind in kinds:
        try:
            _check(value, kind, place)
        except SchemaError as error:
            errors.append(error)
        else:
            return
    # The first is what it should be; None, which most may be as well, says nothing.
    raise errors[0]


def _demand(fits: bool, value: Any, hint: Any, place: str) -> None:
    if not fits:
        raise SchemaError(f"{place}: {value!r} is no {getattr(hint, '__name__', hint)}")
