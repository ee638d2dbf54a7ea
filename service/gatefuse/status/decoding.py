"""Reads a picture from the JSON of another process, perhaps of another version."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from gatefuse.escaping import escaped
from gatefuse.status.picture import FORMAT, Picture


class NotAPictureError(ValueError):
    """The text is no picture that this version can read; the message says why."""


def picture_of(text: bytes) -> Picture:
    """The picture that /status.json told, its texts fit for a terminal.

    Fields that this version does not know are left out; those with a default may be missing.

    Raises:
        NotAPictureError: it is something else.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAPictureError("it does not answer with JSON") from error
    if not isinstance(told, dict) or "format" not in told:
        raise NotAPictureError("it is not the status of a Gatefuse")
    if told["format"] != FORMAT:
        raise NotAPictureError(
            f"its status has format {told['format']}, this command reads {FORMAT}"
        )
    try:
        picture: Picture = _read(Picture, told)
    except (KeyError, TypeError, ValueError) as error:
        raise NotAPictureError(f"its status cannot be read: {error!r}") from error
    return picture


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, told: Any) -> Any:
    """`told` as the type `kind`: a dataclass, a tuple of any length, a dictionary, one of them or None, or a value."""
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        (inner,) = (each for each in get_args(kind) if each is not type(None))
        return None if told is None else _read(inner, told)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return kind(
            **{
                field.name: _read(_hints(kind)[field.name], told[field.name])
                for field in fields(kind)
                if field.name in told or field.default is MISSING
            }
        )
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], each) for each in told)
    if origin is dict:
        return {escaped(str(key)): _read(get_args(kind)[1], value) for key, value in told.items()}
    if kind is str or not isinstance(kind, type):
        return escaped(str(told))
    return kind(told)
