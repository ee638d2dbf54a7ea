"""What a server's descriptions of models say about sending them requests, and about their right answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from gatefuse.client.metadata import ModelMetadata
from gatefuse.commands.loadtest.jobs import Target


def targets_of(models: Sequence[ModelMetadata], *, evaluated: bool) -> list[Target]:
    """Returns a target for each model; all get the same rows.

    Args:
        models: As the server describes them; several inputs must be named as those of the first.
        evaluated: Whether the right answers may be computed, which they are if they can be for all.

    Raises:
        ValueError: A model's inputs or outputs are not those of the first.
    """
    targets = [_target(model, is_first=number == 0) for number, model in enumerate(models)]
    first = targets[0]
    if not evaluated or not all(target.expression for target in targets):
        targets = [replace(target, expression="", constants={}) for target in targets]
    return [
        replace(
            target,
            inputs=_in_order("inputs", target.name, target.inputs, first.inputs),
            outputs=_in_order("outputs", target.name, target.outputs, first.outputs),
        )
        for target in targets
    ]


def _target(model: ModelMetadata, *, is_first: bool) -> Target:
    facts = model.properties
    constants = json.loads(facts.get("constants", "{}"))
    # A vector's values are not told.
    known = None not in constants.values()
    return Target(
        name=model.name,
        inputs=[tensor.name for tensor in model.inputs],
        outputs=[tensor.name for tensor in model.outputs],
        backend=facts.get("backend", ""),
        dtype=facts.get("dtype", ""),
        is_first=is_first,
        expression=facts.get("expression", "") if known else "",
        constants=constants if known else {},
    )


def _in_order(what: str, model: str, names: list[str], first: list[str]) -> list[str]:
    """The names in the order of the first model's; a single one may have a name of its own."""
    if len(names) == len(first) == 1:
        return names
    if sorted(names) != sorted(first):
        raise ValueError(
            f"the models do not go together: the {what} of {model} are {', '.join(names)}, "
            f"not {', '.join(first)}"
        )
    return first
