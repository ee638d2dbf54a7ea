"""`gatefuse models`: what a running server serves, and how."""

import json
import sys
from dataclasses import asdict

from gatefuse.client import Client
from gatefuse.messages import InferenceError, ModelMetadata

COLUMNS = ("model", "ready", "kind", "backend", "dtype", "width", "layers", "what runs")


def run(url: str, as_json: bool) -> int:
    """Prints the models of the server at `url`; returns the exit status."""
    try:
        with Client(url) as client:
            models = [
                (client.model_metadata(name), client.model_ready(name)) for name in client.models()
            ]
    except InferenceError as error:
        print(f"gatefuse: {url}: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps([{**asdict(model), "ready": ready} for model, ready in models], indent=2))
    else:
        _print_table([_row(model, ready) for model, ready in models])
    return 0


def _row(model: ModelMetadata, ready: bool) -> tuple[str, ...]:
    facts = model.properties
    width = model.inputs[0].shape[1]
    return (
        model.name,
        "yes" if ready else "no",
        facts["kind"],
        facts["backend"],
        facts["dtype"],
        f"1..{facts['max_columns']}" if width < 0 else str(width),
        facts["layers"],
        facts["description"],
    )


def _print_table(rows: list[tuple[str, ...]]) -> None:
    table = [COLUMNS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]))
