"""Errors a caller can act on. No torch."""


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the text names the file, the tensor and both shapes."""


class ExpressionError(ValueError):
    """An elementwise expression is outside the grammar; the text points at the column."""


class BackendUnavailableError(RuntimeError):
    """A backend cannot run on this machine; the text says what is missing."""


class PlanTableError(ValueError):
    """A table of measured plans cannot be used; the text names the file and the entry."""
