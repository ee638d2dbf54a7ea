"""`gatefuse bench`: one command for each thing that can be measured."""

from __future__ import annotations

import argparse

from gatefuse.commands.bench import elementwise, kernels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `bench` and what it can measure."""
    benches = parser.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    kernels.add_arguments(benches.add_parser("kernels", help="the fused MLP on a GPU"))
    elementwise.add_arguments(benches.add_parser("elementwise", help="elementwise chains on a GPU"))


def run(arguments: argparse.Namespace) -> int:
    """Measures what was named; returns the exit status.

    Raises:
        ModuleNotFoundError: torch or triton is not installed.
    """
    status: int = arguments.measure(arguments)
    return status
