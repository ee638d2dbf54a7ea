"""The picture on a terminal, drawn anew each time."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gatefuse.commands.top import tables
from gatefuse.commands.top.asking import Answer
from gatefuse.status.picture import Picture

_STYLES = {
    "ready": "green",
    "starting": "yellow",
    "warming": "yellow",
    "loading": "yellow",
    "unloading": "yellow",
    "draining": "yellow",
    "degraded": "bold yellow",
    "down": "bold red",
    "dead": "bold red",
    "failed": "bold red",
    "unavailable": "bold red",
    "replaced": "dim",
    "fused": "bright_blue",
    "eager": "dark_orange",
    "compiled": "cyan",
    "textbook": "magenta",
}
_QUIT = b"qQ"
_MANY_KEYS = 64
# Lines of a server that are no model: rules, headline, figures, workers, titles, what was left out.
_AROUND = 10
_GAP = 2
_FEWEST_MODELS = 3
_SHORT_NAME = 24


def follow(ask: Callable[[], Sequence[Answer]], interval_s: float, console: Console) -> None:
    """Draws what `ask` answers until somebody presses q."""
    with (
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        while True:
            asked_s = time.monotonic()
            live.update(drawn(ask(), *console.size), refresh=True)
            if pressed(max(0.0, asked_s + interval_s - time.monotonic())):
                return


def drawn(answers: Sequence[Answer], width: int, height: int) -> RenderableType:
    """All servers, in so many columns and lines; several share the lines."""
    parts: list[RenderableType] = []
    for answer in answers:
        parts.append(Rule(Text(answer.url, "bold"), align="left", style="dim"))
        if answer.picture is None:
            parts.append(Text(answer.failure, "bold red"))
        else:
            parts += _server(answer.picture, width, height // len(answers))
    parts.append(Text("q quits", "dim"))
    return Group(*parts)


def _server(picture: Picture, width: int, height: int) -> Iterator[RenderableType]:
    state, _, rest = tables.headline(picture).partition("  ")
    figures = Text(overflow="ellipsis", no_wrap=True)
    yield Text.assemble((state, _STYLES.get(state, "")), "  ", (rest, "dim"))
    for name, value in tables.totals(picture):
        figures.append(f"  {name} " if figures else f"{name} ", "dim")
        figures.append(value, "bold")
    yield figures
    yield Text(tables.workers(picture), "dim")
    lines = tables.devices(picture)
    yield from (Text(line) for line in lines)
    troubles = tables.troubles(picture)
    if troubles:
        yield Text(troubles, "yellow", overflow="ellipsis", no_wrap=True)
    room = height - _AROUND - len(lines) - bool(troubles)
    models = tables.models(picture, max(_FEWEST_MODELS, room))
    yield from ("", _table(models, width))
    side = tables.side_by_side(picture, room - len(models.rows) - 3)
    if side.rows:
        yield from ("", _table(side, width))


def _table(sheet: tables.Sheet, width: int) -> RenderableType:
    table = Table(
        box=None, pad_edge=False, header_style="dim", expand=False, padding=(0, _GAP, 0, 0)
    )
    sheet, columns, needed = _fitted(sheet, width)
    for position, title in enumerate(sheet.titles[:columns]):
        justify = "left" if position < sheet.left else "right"
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in sheet.rows:
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row[:columns]))
    notes = []
    if sheet.left_out:
        notes.append(f"and {sheet.left_out} more")
    if columns < len(sheet.titles):
        notes.append(f"all columns from a width of {needed}")
    return Group(table, Text("; ".join(notes), "dim")) if notes else table


def _fitted(sheet: tables.Sheet, width: int) -> tuple[tables.Sheet, int, int]:
    """The sheet, its names as short as they must be; how many columns have room; and the width that all need."""
    widths = [max(map(len, cells)) for cells in zip(sheet.titles, *sheet.rows, strict=True)]
    missing = sum(widths) + _GAP * (len(widths) - 1) - width
    longest = max(min(widths[0], _SHORT_NAME), widths[0] - max(0, missing))
    rows = tuple((_shortened(row[0], longest), *row[1:]) for row in sheet.rows)
    ends = list(accumulate((longest, *widths[1:]), lambda end, cell: end + _GAP + cell))
    columns = sum(end <= width for end in ends)
    return replace(sheet, rows=rows), max(1, columns), ends[-1]


def _shortened(name: str, most: int) -> str:
    """A name without its middle, where it is longer: the ends of names that belong together tell them apart."""
    if len(name) <= most:
        return name
    behind = (most - 1) // 2
    return f"{name[: most - 1 - behind]}…{name[-behind:]}"


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds for a key that quits; True when it was pressed."""
    stdin = sys.stdin.fileno()
    if not sys.stdin.isatty():
        yield _never
        return
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)

    def pressed(timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([stdin], [], [], left_s)[0]:
                keys = os.read(stdin, _MANY_KEYS)
                if not keys or any(key in _QUIT for key in keys):
                    return True
        return False

    try:
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _never(timeout_s: float) -> bool:
    time.sleep(timeout_s)
    return False
