"""Shows how far a test is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

_LINE_INTERVAL_S = 10.0


class Progress:
    """Progress over ``total_s`` seconds of measuring; a context manager."""

    def __init__(self, total_s: float) -> None:
        """Chooses bar or lines."""
        self._total_s = total_s
        self._done_s = 0.0
        self._next_line_s = time.monotonic() + _LINE_INTERVAL_S
        self._bar: Any = _rich_bar(total_s) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        """Shows the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, label: str, seconds: float) -> None:
        """Says that ``seconds`` of what ``label`` names have passed."""
        done_s = self._done_s + seconds
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done_s, description=label)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S
            print(f"{done_s / self._total_s:4.0%}  {label}", file=sys.stderr, flush=True)

    def finish(self, seconds: float) -> None:
        """Says that something that took ``seconds`` is over."""
        self._done_s += seconds


def _rich_bar(total_s: float) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        return None
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        transient=True,
    )
    bar.add_task("starting", total=total_s)
    return bar
