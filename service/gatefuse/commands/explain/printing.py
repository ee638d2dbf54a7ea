"""Prints an explanation: rich tables on a terminal that has rich, plain ones elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from textwrap import fill

from gatefuse.commands.explain.tables import Table, headline, point_title, tables_of
from gatefuse.commands.text_table import text_table
from gatefuse_kernels.explain.results import Explanation

_WIDTH = 100


def show(explanation: Explanation) -> None:
    """Prints all of it to stdout."""
    draw = _drawer()
    print(headline(explanation))
    print(fill(explanation.turning, _WIDTH))
    for point in explanation.points:
        print(f"\n{point_title(explanation, point)}")
        for table in tables_of(point):
            print()
            draw(table)
        print()
        for sentence in point.advice:
            print(fill(sentence, _WIDTH))


def _drawer() -> Callable[[Table], None]:
    if not sys.stdout.isatty():
        return _draw_plain
    try:
        import rich.table  # noqa: F401 - asked whether it is there
    except ModuleNotFoundError:
        return _draw_plain
    return _draw_rich


def _draw_plain(table: Table) -> None:
    print(text_table((table.header, *table.rows), table.left))


def _draw_rich(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, name in enumerate(table.header):
        drawn.add_column(name, justify="left" if number < table.left else "right")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)
