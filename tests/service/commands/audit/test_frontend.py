"""The frontend of an audited service."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatefuse.commands.audit import frontend
from gatefuse.frontend.process import FrontendReport


class Broken:
    """A frontend that could not start."""

    def __init__(self, config: object, sockets: object) -> None:
        pass

    def report(self) -> FrontendReport:
        return FrontendReport(1, 0, False, "no port is free")


def test_one_that_cannot_start_does_not_keep_the_audit_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models: [{name: ffn, random: {hidden: 8, intermediate: 16}}]\n")
    monkeypatch.setattr(frontend, "Frontend", Broken)
    monkeypatch.setattr("sys.argv", ["frontend", str(config), "worker.sock"])
    with pytest.raises(SystemExit, match="no port is free"):
        frontend.main()
