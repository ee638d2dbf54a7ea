"""The table that the environment names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan import (
    KNOWN_DEVICES,
    PLAN_TABLE_VARIABLE,
    PlanTable,
    format_table,
    own_table,
)

L40S = KNOWN_DEVICES["nvidia-l40s"]
H200 = KNOWN_DEVICES["nvidia-h200"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment says that a table is; none is."""
    path = tmp_path / "mine.json"
    monkeypatch.setenv(PLAN_TABLE_VARIABLE, str(path))
    return path


@pytest.fixture
def table(path: Path) -> PlanTable:
    """An empty one, of an L40S."""
    table = PlanTable(L40S.name, L40S.capability, L40S.multiprocessors, ())
    path.write_text(format_table(table))
    return table


def test_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAN_TABLE_VARIABLE, raising=False)
    assert own_table(L40S) is None
    monkeypatch.setenv(PLAN_TABLE_VARIABLE, "")
    assert own_table(L40S) is None


def test_it_is_read_once(table: PlanTable, path: Path) -> None:
    read = own_table(L40S)
    assert read is not None
    assert read.device == table.device
    path.unlink()
    assert own_table(L40S) is read


def test_one_of_another_device_is_refused_with_its_file(table: PlanTable, path: Path) -> None:
    with pytest.raises(PlanTableError) as caught:
        own_table(H200)
    told = str(caught.value)
    assert told.startswith(f"{PLAN_TABLE_VARIABLE}={path}: ")
    assert f"measured on {table.device}" in told
    assert "but this is NVIDIA H200" in told


def test_a_broken_one_is_refused_with_its_file(path: Path) -> None:
    with pytest.raises(PlanTableError, match=r"^GATEFUSE_PLAN_TABLE: .*mine\.json: No such file"):
        own_table(L40S)
    path.write_text("{}")
    with pytest.raises(PlanTableError, match=r"^GATEFUSE_PLAN_TABLE: .*mine\.json: .* is missing"):
        own_table(L40S)
