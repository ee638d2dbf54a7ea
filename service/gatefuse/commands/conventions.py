"""What the commands share: exit statuses, where JSON goes, processes that compile."""

import os
from pathlib import Path

# Exit statuses; those from 64 on are named in sysexits.h.
EXIT_WRONG = 1
EXIT_USAGE = 2
EXIT_NO_INPUT = 66  # EX_NOINPUT
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE
EXIT_SOFTWARE = 70  # EX_SOFTWARE
EXIT_NO_MEMORY = 71  # EX_OSERR
EXIT_CANNOT_WRITE = 73  # EX_CANTCREAT
EXIT_CONFIG = 78  # EX_CONFIG
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as of a process that SIGPIPE ended

STDOUT = Path("-")
"""Given for a file of JSON: it is printed, in place of the tables."""

_MOST_JOBS = 12


def default_jobs() -> int:
    """How many processes compile, unless told otherwise: two cores stay free."""
    return min(_MOST_JOBS, max(0, (os.cpu_count() or 1) - 2))
