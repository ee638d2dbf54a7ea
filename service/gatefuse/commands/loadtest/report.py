"""What one load test gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gatefuse.client.metadata import ModelMetadata, ServerMetadata
from gatefuse.commands.loadtest.stats import CellResult, Ratio


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one test gave."""

    facts: Mapping[str, str]
    server: ServerMetadata
    models: tuple[ModelMetadata, ...]
    results: tuple[CellResult, ...]
    ratios: tuple[Ratio, ...]
    checked_against: str

    @property
    def problems(self) -> list[str]:
        """What was wrong, in words; empty if nothing was."""
        return [
            f"{result.cell.model}, rows {result.cell.rows}, load {result.cell.load.label}: {problem}"
            for result in self.results
            for problem in result.problems
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        fields = asdict(self)
        fields["problems"] = self.problems
        for result, plain in zip(self.results, fields["results"], strict=True):
            plain["answers"]["relative"] = result.answers.relative
            plain["versus_first"]["relative"] = result.versus_first.relative
        return fields
