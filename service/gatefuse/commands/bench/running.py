"""What every benchmark does: measure, print, write, and say how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from gatefuse.commands.bench.output import CannotWriteError, Output, say
from gatefuse.commands.conventions import (
    EXIT_CANNOT_WRITE,
    EXIT_NO_MEMORY,
    EXIT_UNAVAILABLE,
    EXIT_WRONG,
    STDOUT,
)
from gatefuse_kernels.bench.errors import NoMemoryError, WrongAnswerError
from gatefuse_kernels.errors import BackendUnavailableError

EXIT_STATUS = """\
exit status: 0 measured, whatever the figures; 1 an answer of ours is wrong; 2 wrong usage;
69 no CUDA device; 71 the GPU has too little memory; 73 FILE cannot be written; 78 torch or triton
is missing.
"""


class _Report(Protocol):
    @property
    def problems(self) -> tuple[str, ...]:
        """What no speed excuses."""


Report = TypeVar("Report", bound=_Report)


@dataclass(frozen=True, slots=True)
class Bench(Generic[Report]):
    """One benchmark.

    Attributes:
        measure: given what is told of its progress and what keeps its findings so far.
        text: a report for people.
        json_of: a report for programs.
    """

    measure: Callable[[Callable[[str], None], Callable[[Report], None]], Report]
    text: Callable[[Report], str]
    json_of: Callable[[Report], dict[str, Any]]


def run_and_report(bench: Bench[Report], path: Path | None) -> int:
    """Measures, prints and writes; returns the exit status.

    Args:
        bench: what to run.
        path: where to write the report, if anywhere; PATH.partial has it while the run goes on. STDOUT
            for it in place of the text.
    """
    as_json = path == STDOUT
    try:
        output = Output(path) if path and not as_json else None

        def keep(report: Report) -> None:
            if output:
                output.keep(bench.json_of(report))

        report = bench.measure(say, keep)
        print(
            json.dumps(bench.json_of(report), indent=1) if as_json else bench.text(report),
            flush=True,
        )
        if output:
            output.finish(bench.json_of(report))
    except BackendUnavailableError as error:
        say(str(error))
        return EXIT_UNAVAILABLE
    except WrongAnswerError as error:
        say(str(error))
        return EXIT_WRONG
    except NoMemoryError as error:
        say(str(error))
        return EXIT_NO_MEMORY
    except CannotWriteError as error:
        say(str(error))
        return EXIT_CANNOT_WRITE
    return EXIT_WRONG if report.problems else 0
