"""`gatefuse bench elementwise`: chains beside a copy, torch's own ops and torch.compile."""

from __future__ import annotations

import argparse
from functools import partial

from gatefuse.commands.bench.arguments import add_output, integer, joined, list_of
from gatefuse.commands.bench.running import EXIT_STATUS, Bench, run_and_report
from gatefuse.commands.conventions import EXIT_USAGE
from gatefuse_kernels.bench.chains.cases import CHAINS, COLUMNS, OWN, Chain
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.report import json_of, text
from gatefuse_kernels.errors import ExpressionError
from gatefuse_kernels.explain.quantities import parse_elements
from gatefuse_kernels.shapes import DType

_LEAST_ROUNDS = 10
_NAMES = tuple(chain.name for chain in CHAINS)

_DESCRIPTION = f"""\
Measures elementwise chains on this machine's GPU, over tensors of {COLUMNS} columns. In one run and
taking turns, as CUDA-graph replays: the fused kernel, torch's own ops one by one, torch.compile at
static shapes, and copies that move as many bytes as the fused kernel, which is what memory allows.
Rows of every answer are checked against float64 first; if one of ours is wrong, the run ends there.
At last each form runs once under torch.profiler, whose count of launches must be the ledger's.

chains:
"""
_EPILOG = f"""\
{EXIT_STATUS}
1 also says that launches were counted that the profiler did not see, or the other way round. If a
run ends early, whatever the cause, FILE.partial has what it had measured.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be measured."""
    width = max(map(len, _NAMES))
    chains = "\n".join(f"  {chain.name:{width}}  {chain.text}" for chain in CHAINS)
    parser.description, parser.epilog = _DESCRIPTION + chains, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(measure=partial(run, parser))
    add = parser.add_argument
    add(
        "--chains",
        type=_chains,
        metavar="NAME,...",
        help="which of the chains: all, none, or names (default: all; with --expression none)",
    )
    add("--expression", metavar="TEXT", help="a chain of one's own; names are tensors")
    add(
        "--vectors",
        type=list_of(str),
        default=(),
        metavar="NAME,...",
        help="names in the expression that are one number per column",
    )
    add(
        "--dtype",
        type=list_of(_dtype),
        default=(DType.BF16, DType.FP32),
        metavar="TYPE,...",
        help=f"element types, of {joined(tuple(DType))} (default: bf16,fp32)",
    )
    add(
        "--elements",
        type=_elements,
        default=100_000_000,
        metavar="N",
        help="of each tensor, such as 100M; rounded down to whole rows (default: 100M)",
    )
    add(
        "--rounds",
        type=integer(_LEAST_ROUNDS),
        default=100,
        metavar="N",
        help="most timed rounds of a chain; long ones get fewer (default: %(default)s)",
    )
    add_output(parser, "chain")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; returns the exit status.

    Raises:
        ModuleNotFoundError: torch or triton is not installed.
        SystemExit: the expression is outside the grammar, or there is nothing to measure.
    """
    try:
        options = options_of(arguments)
    except ValueError as error:
        parser.exit(EXIT_USAGE, f"gatefuse bench: {error}\n")
    from gatefuse_kernels.bench.chains.run import run_chains

    return run_and_report(Bench(partial(run_chains, options), text, json_of), arguments.json)


def options_of(arguments: argparse.Namespace) -> ChainOptions:
    """What the arguments ask for.

    Raises:
        ValueError: the expression is outside the grammar, or there is nothing to measure.
    """
    own = _own(arguments)
    named = arguments.chains
    if named is None:
        named = () if own else CHAINS
    chains = (*named, *own)
    if not chains:
        raise ValueError("nothing to measure: name chains, or give --expression")
    return ChainOptions(
        chains=chains,
        dtypes=arguments.dtype,
        elements=arguments.elements,
        rounds=arguments.rounds,
        budget_s=arguments.budget,
    )


def _own(arguments: argparse.Namespace) -> tuple[Chain, ...]:
    if arguments.expression is None:
        if arguments.vectors:
            raise ValueError("--vectors belongs to --expression")
        return ()
    chain = Chain(OWN, arguments.expression, vectors=arguments.vectors)
    try:
        program = chain.program
    except ExpressionError as error:
        raise ValueError(f"--expression: {error}") from None
    if not program.steps:
        raise ValueError("--expression: a copy computes nothing; write an operation")
    return (chain,)


def _chains(given: str) -> tuple[Chain, ...]:
    if given == "all":
        return CHAINS
    if given == "none":
        return ()
    named = list_of(_chain_name)(given)
    return tuple(chain for chain in CHAINS if chain.name in named)


def _chain_name(given: str) -> str:
    if given not in _NAMES:
        raise ValueError(f"unknown chain {given!r}: use all, none, or some of {joined(_NAMES)}")
    return given


def _dtype(given: str) -> DType:
    try:
        return DType(given)
    except ValueError:
        names = joined(tuple(DType))
        raise ValueError(f"unknown type {given!r}: use some of {names}") from None


def _elements(given: str) -> int:
    try:
        return parse_elements(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
