"""Cells in columns, for a terminal or a file."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Returns rows of cells in columns, a rule under the first row; the first `left` columns left-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])
