"""Draws a board as a picture, from the same queries that Grafana would send.

python -m deploy.grafana.draw service --prometheus http://localhost:9090 --output docs/images
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.pictures.page import draw
from deploy.grafana.pictures.source import Source
from deploy.grafana.prometheus_api import Prometheus, PrometheusError

CANNOT_REACH = 69
CANNOT_WRITE = 73


def _choice(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def arguments_of(words: Sequence[str]) -> argparse.Namespace:
    """The command line's choices."""
    parser = argparse.ArgumentParser(prog="deploy.grafana.draw", description=__doc__)
    parser.add_argument("board", choices=sorted(BOARDS))
    parser.add_argument("--prometheus", required=True, metavar="URL", help="where it answers")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="for BOARD.png")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_choice,
        metavar="NAME=VALUE",
        dest="chosen",
        help="a variable of the board; a label's may be a regular expression",
    )
    parser.add_argument("--minutes", type=float, default=30, help="how far back (%(default)s)")
    parser.add_argument(
        "--until", type=float, metavar="SECONDS", help="end, in seconds since 1970 (now)"
    )
    options = parser.parse_args(words)
    unknown = dict(options.chosen).keys() - {v.name for v in BOARDS[options.board].variables}
    if unknown:
        parser.error(f"{options.board} has no variable {', '.join(sorted(unknown))}")
    return options


def main(words: Sequence[str]) -> int:
    """Writes the picture; returns the exit status."""
    options = arguments_of(words)
    end_s = time.time() if options.until is None else options.until
    target = options.output / f"{options.board}.png"
    source = Source(Prometheus(options.prometheus), end_s - 60 * options.minutes, end_s)
    try:
        draw(BOARDS[options.board], source, dict(options.chosen), target)
    except PrometheusError as error:
        print(error, file=sys.stderr)
        return CANNOT_REACH
    except OSError as error:
        print(f"{target}: {error.strerror}", file=sys.stderr)
        return CANNOT_WRITE
    print(target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
