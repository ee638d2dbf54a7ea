"""Why a run ends before its end. Pure: no torch here."""


class WrongAnswerError(RuntimeError):
    """An answer of ours misses its gate: its speed is of no interest."""


class NoMemoryError(RuntimeError):
    """The GPU has too little memory; the text says for what."""
