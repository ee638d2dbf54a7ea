"""Readers of arguments that the benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


def list_of(parse: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """A reader of comma-separated items, each wanted once."""

    def parse_list(given: str) -> tuple[Item, ...]:
        try:
            return tuple(dict.fromkeys(parse(item.strip()) for item in given.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_list


def integer(least: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least`."""

    def parse(given: str) -> int:
        if not given.isdecimal() or int(given) < least:
            raise argparse.ArgumentTypeError(f"expected an integer from {least}, got {given!r}")
        return int(given)

    return parse


def joined(values: tuple[object, ...]) -> str:
    """As `list_of` reads them."""
    return ",".join(map(str, values))


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Declares when a run ends and where it writes; `what` is measured one after the other."""
    parser.add_argument(
        "--budget",
        type=integer(0),
        default=0,
        metavar="SECONDS",
        help=f"begin no new {what} after so long, and report what there is (default: no limit)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write everything that was measured here; - prints it",
    )
