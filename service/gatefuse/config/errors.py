"""How a configuration is refused."""

from pydantic import ValidationError


class ConfigError(ValueError):
    """The configuration cannot be served; the text says which key and why."""


def readable(error: ValidationError) -> str:
    """One line per broken rule, each starting with the key's path."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        lines.append(f"{key}: {item['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)
