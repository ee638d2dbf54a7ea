"""The frontend of an audited service, a process of its own: `python -m gatefuse.commands.audit.frontend CONFIG SOCKET`.

Prints its port once it is ready, and ends when its input does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gatefuse.config import ServiceConfig, load_config
from gatefuse.frontend.process import Frontend

_POLL_S = 0.05


def audited(path: Path) -> ServiceConfig:
    """The configuration as it is audited: one frontend at any free port, on this machine's GPU."""
    overrides = {"host": "127.0.0.1", "grpc_port": 0, "frontends": 1, "device": "cuda"}
    return load_config(path).with_overrides(overrides)


def main() -> None:
    """Serve until told to stop."""
    frontend = Frontend(audited(Path(sys.argv[1])), [sys.argv[2]])
    while not (report := frontend.report()).ready:
        if report.error:
            raise SystemExit(f"gatefuse audit: {report.error}")
        time.sleep(_POLL_S)
    print(report.port, flush=True)
    sys.stdin.read()
    frontend.drain()


if __name__ == "__main__":
    main()
