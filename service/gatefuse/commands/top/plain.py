"""The picture as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gatefuse.commands.text_table import text_table
from gatefuse.commands.top import tables
from gatefuse.commands.top.asking import Answer


def text(answers: Sequence[Answer]) -> str:
    """All servers, one below the other."""
    return "\n\n".join("\n".join(_lines(answer)) for answer in answers)


def _lines(answer: Answer) -> list[str]:
    picture = answer.picture
    if picture is None:
        return [f"{answer.url}  {answer.failure}"]
    lines = [f"{answer.url}  {tables.headline(picture)}"]
    lines.append("  ".join(f"{name} {value}" for name, value in tables.totals(picture)))
    lines.append(tables.workers(picture))
    lines += tables.devices(picture)
    if troubles := tables.troubles(picture):
        lines.append(troubles)
    for sheet in (tables.models(picture), tables.side_by_side(picture)):
        if sheet.rows:
            lines += ["", text_table([sheet.titles, *sheet.rows], left=sheet.left)]
    return lines
