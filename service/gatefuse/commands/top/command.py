"""Runs `gatefuse top`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from gatefuse.commands.conventions import (
    EXIT_BROKEN_PIPE,
    EXIT_CONFIG,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from gatefuse.commands.top.asking import Answer, Servers
from gatefuse.commands.top.plain import text
from gatefuse.missing_packages import missing_package

WAIT_S = 1.2
"""A server begins to look when it is first asked: after so long there are two moments to tell rates from."""
PATIENCE = 4


def run(options: argparse.Namespace) -> int:
    """Shows servers until it is stopped, or once; returns the exit status."""
    try:
        servers = Servers(options.urls)
    except ValueError as error:
        print(f"gatefuse: {error}", file=sys.stderr)
        return EXIT_USAGE
    with servers:
        try:
            if options.json or options.once:
                return _once(servers, options.json)
            if sys.stdout.isatty():
                return _on_screen(servers, options.interval)
            return _as_lines(servers, options.interval)
        except KeyboardInterrupt:
            return 0
        except BrokenPipeError:
            # Python flushes at exit, and would say so again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_BROKEN_PIPE


def _once(servers: Servers, as_json: bool) -> int:
    answers = servers.ask()
    for _ in range(PATIENCE):
        if all(answer.picture is None or answer.picture.now for answer in answers):
            break
        time.sleep(WAIT_S)
        answers = servers.ask()
    if as_json:
        print(json.dumps([_as_json(answer) for answer in answers]))
    elif shown := [answer for answer in answers if answer.picture is not None]:
        print(text(shown))
    failed = [answer for answer in answers if answer.picture is None]
    for answer in failed:
        print(f"gatefuse: {answer.url}: {answer.failure}", file=sys.stderr)
    return EXIT_UNAVAILABLE if failed else 0


def _as_json(answer: Answer) -> dict[str, object]:
    """One server's: its own JSON, all digits of it, or why there is none."""
    if answer.picture is None:
        return {"url": answer.url, "error": answer.failure}
    return {"url": answer.url, "status": json.loads(answer.text)}


def _on_screen(servers: Servers, interval_s: float) -> int:
    try:
        from rich.console import Console

        from gatefuse.commands.top.screen import follow
    except ModuleNotFoundError as error:
        name = missing_package(error)
        print(
            f"gatefuse: {name} is missing: pip install 'gatefuse[loadtest]', or use --once",
            file=sys.stderr,
        )
        return EXIT_CONFIG
    follow(servers.ask, interval_s, Console())
    return 0


def _as_lines(servers: Servers, interval_s: float) -> int:
    while True:
        asked_s = time.monotonic()
        _print(servers.ask())
        time.sleep(max(0.0, asked_s + interval_s - time.monotonic()))


def _print(answers: Sequence[Answer]) -> None:
    print(text(answers), end="\n\n", flush=True)
