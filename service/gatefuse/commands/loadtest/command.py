"""``gatefuse loadtest``: plans, runs, prints, writes, and says by its exit status whether all was right."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from gatefuse.client.blocking import Client, InferenceError
from gatefuse.client.metadata import ModelMetadata
from gatefuse.client.transport.retry import SHORT_RETRY
from gatefuse.commands.conventions import EXIT_USAGE, EXIT_WRONG, STDOUT
from gatefuse.commands.loadtest.checks import Gate, gate_for
from gatefuse.commands.loadtest.facts import run_facts
from gatefuse.commands.loadtest.fleet import Fleet
from gatefuse.commands.loadtest.jobs import CellJob, LoadTestError, Setup, SourceSpec, Target
from gatefuse.commands.loadtest.options import Options, add_arguments, options_of
from gatefuse.commands.loadtest.plan import plan_cells
from gatefuse.commands.loadtest.progress import Progress
from gatefuse.commands.loadtest.report import Report
from gatefuse.commands.loadtest.stats import CellResult, compare_models, summarise
from gatefuse.commands.loadtest.table import cells_of, header, notes, ratio_line
from gatefuse.commands.loadtest.targets import targets_of
from gatefuse.commands.text_table import text_table
from gatefuse.wire import Datatype

__all__ = ["add_arguments", "run"]

DEFAULT_COLUMNS = 1024
_HTML_NEEDS = ("jinja2", "matplotlib")


def run(arguments: argparse.Namespace) -> int:
    """Runs the test; returns 0 if every answer was right, 1 if not, 2 if it could not be run."""
    try:
        options = options_of(arguments)
        if options.html is not None:
            _check_html_packages()
        report = run_test(options, shlex.join(["gatefuse", *sys.argv[1:]]))
    except (InferenceError, LoadTestError, ValueError, OSError) as error:
        print(f"gatefuse loadtest: {error}", file=sys.stderr)
        return EXIT_USAGE
    written = json.dumps(report.as_json(), indent=1)
    if options.json == STDOUT:
        print(written)
    else:
        _print(report)
        if options.json is not None:
            _write(options.json, written + "\n")
    if options.html is not None:
        from gatefuse.commands.loadtest.html import render

        _write(options.html, render(report))
    return EXIT_WRONG if report.problems else 0


def run_test(options: Options, command: str) -> Report:
    """Runs every cell and returns the report.

    Raises:
        InferenceError: The server does not answer before the test, or does not know a model.
        LoadTestError: A sending process cannot go on.
        ValueError: The models do not fit the options.
    """
    with Client(options.url, timeout_s=options.timeout_s, retry=SHORT_RETRY) as client:
        server = client.metadata()
        models = tuple(client.model_metadata(name) for name in options.models)
    targets = targets_of(models, evaluated=options.check and options.exact is None)
    datatype = options.datatype or Datatype.parse(models[0].inputs[0].datatype)
    setup = _setup(options, models, targets[0], datatype)
    evaluated = all(target.expression for target in targets)
    with Fleet(setup) as fleet:
        if options.check and options.exact is None and not evaluated:
            fleet.probe(targets[0])
        results = _run_cells(options, targets, datatype, fleet)
    return Report(
        facts=run_facts(command),
        server=server,
        models=models,
        results=tuple(results),
        ratios=tuple(compare_models(results)),
        checked_against=_checked_against(options, evaluated=evaluated),
    )


def _run_cells(
    options: Options, targets: Sequence[Target], datatype: Datatype, fleet: Fleet
) -> list[CellResult]:
    by_name = {target.name: target for target in targets}
    cells = plan_cells(options.models, options.rows, options.loads)
    cell_s = options.warm_up_s + options.seconds
    results = []
    with Progress(cell_s * len(cells)) as progress:
        for number, cell in enumerate(cells, 1):
            target = by_name[cell.model]
            gate = _gate(options, target, datatype)
            job = CellJob(
                target=target,
                rows=cell.rows,
                load=cell.load,
                warm_up_s=options.warm_up_s,
                seconds=options.seconds,
                row_gate=gate.row if gate else None,
            )
            label = (
                f"[{number}/{len(cells)}] {cell.model}, rows {cell.rows}, load {cell.load.label}"
            )
            reports = fleet.run(job, partial(progress.show, label))
            progress.finish(cell_s)
            results.append(summarise(cell, reports, options.seconds, gate))
    return results


def _setup(
    options: Options, models: Sequence[ModelMetadata], first: Target, datatype: Datatype
) -> Setup:
    path = options.exact or options.inputs
    if path and len(first.inputs) + len(first.outputs) > 2:
        raise ValueError("--exact and --inputs are for models of one input and one output")
    return Setup(
        url=options.url,
        source=SourceSpec(
            columns=_columns(options, models),
            layers=_layers(options, models[0]),
            inputs=len(first.inputs),
            outputs=len(first.outputs),
            path=str(path) if path else "",
            exact=options.exact is not None,
            seed=options.seed,
        ),
        datatype=datatype.value,
        timeout_s=options.timeout_s,
        connections=options.connections,
        part=0,
        parts=options.processes,
        max_outstanding=options.max_outstanding,
        seed=options.seed,
    )


def _columns(options: Options, models: Sequence[ModelMetadata]) -> int:
    widths = {model.inputs[0].shape[-1] for model in models} - {-1}
    if len(widths) > 1:
        raise ValueError(f"the models take rows of different widths: {sorted(widths)}")
    width = widths.pop() if widths else None
    if width and options.columns not in (None, width):
        raise ValueError(f"--columns {options.columns}: the models take rows of {width}")
    if width:
        return width
    told = [
        model.properties["max_columns"] for model in models if "max_columns" in model.properties
    ]
    most = min(map(int, told), default=None)
    if most is None:
        return options.columns or DEFAULT_COLUMNS
    if options.columns and options.columns > most:
        raise ValueError(f"--columns {options.columns}: the models take rows of at most {most}")
    return options.columns or min(DEFAULT_COLUMNS, most)


def _layers(options: Options, model: ModelMetadata) -> list[int] | None:
    if options.layers is not None:
        return list(options.layers)
    if options.exact or options.inputs:
        return None
    listed = model.properties.get("layers", "")
    return [int(layer) for layer in listed.split(",")] if listed else None


def _gate(options: Options, target: Target, datatype: Datatype) -> Gate | None:
    if not options.check:
        return None
    if options.max_error is not None:
        return Gate.of(options.max_error)
    roundings = len(target.program.steps) if target.expression else 0
    exact = options.exact is not None or bool(target.expression)
    return gate_for(target.backend, target.dtype, datatype, exact=exact, roundings=roundings)


def _checked_against(options: Options, *, evaluated: bool) -> str:
    if not options.check:
        return "nothing: --no-check"
    if options.exact is not None:
        return f"the exact answers of {options.exact.name}"
    if evaluated:
        return "the expression in float64"
    return f"{options.models[0]}'s answer to each row alone"


def _print(report: Report) -> None:
    print(text_table([header(), *(cells_of(result) for result in report.results)]))
    print()
    for ratio in report.ratios:
        print(ratio_line(ratio))
    for note in notes(report.results):
        print(f"note: {note}")
    checked = sum(result.answers.rows for result in report.results)
    print(f"{checked} rows checked against {report.checked_against}")
    for problem in report.problems:
        print(f"WRONG: {problem}")


def _check_html_packages() -> None:
    missing = [name for name in _HTML_NEEDS if find_spec(name) is None]
    if missing:
        raise LoadTestError(f"--html needs {', '.join(missing)}: pip install 'gatefuse[loadtest]'")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
