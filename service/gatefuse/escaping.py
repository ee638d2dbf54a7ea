"""Text that strangers wrote, made fit for a terminal or a log."""


def escaped(text: str, most: int | None = None) -> str:
    """The text with what cannot be printed as Python's escapes, no longer than `most` characters.

    A server's or a client's control characters could move the cursor, set the title or begin a line of their own.
    """
    # Cut first as well: what is very long need not be looked at whole.
    cut = text if most is None else text[: most + 1]
    shown = cut if cut.isprintable() else "".join(map(_escaped_character, cut))
    return shown if most is None or len(shown) <= most else f"{shown[: most - 1]}…"


def _escaped_character(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
