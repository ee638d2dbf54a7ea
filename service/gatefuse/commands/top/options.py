"""The options of `gatefuse top`."""

from __future__ import annotations

import argparse

DEFAULT_URL = "127.0.0.1:8002"
SHORTEST_INTERVAL_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the command's parser."""
    parser.add_argument(
        "urls",
        nargs="*",
        default=[DEFAULT_URL],
        metavar="URL",
        help=f"metrics port of a server, HOST:PORT or as `serve` prints it (default: {DEFAULT_URL})",
    )
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="S", help="seconds (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print one picture and exit")
    parser.add_argument(
        "--json", action="store_true", help="print one picture as JSON, a list of servers, and exit"
    )


def _interval(text: str) -> float:
    interval_s = float(text)
    if not interval_s >= SHORTEST_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"at least {SHORTEST_INTERVAL_S}")
    return interval_s
