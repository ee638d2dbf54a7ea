"""Measured entries into tables, and tables into files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gatefuse_kernels.errors import PlanTableError
from gatefuse_kernels.plan import KNOWN_DEVICES, read_table
from gatefuse_kernels.plan.shipped_tables import shipped_tables
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning.merging import OutputError, open_table, probe, with_entry, write_table

H200 = KNOWN_DEVICES["nvidia-h200"]
FIRST, SECOND, *_ = shipped_tables()[0].entries


def test_a_file_that_is_not_there_is_an_empty_table(tmp_path: Path) -> None:
    table = open_table(tmp_path / "none.json", H200)
    assert table.is_of(H200)
    assert table.entries == ()


def test_an_entry_replaces_its_own_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    table = open_table(path, H200)
    for entry in (FIRST, SECOND):
        table = with_entry(table, entry)
        write_table(table, path)
    again = replace(FIRST, deterministic=None)
    other = replace(FIRST, dtype=DType.FP16)
    write_table(with_entry(with_entry(open_table(path, H200), again), other), path)
    assert read_table(path).entries == (again, SECOND, other)
    assert read_table(path).entry(MlpShape(1, 1), DType.BF16) is None
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


def test_the_output_is_probed_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    probe(path)
    assert list(path.parent.iterdir()) == []
    write_table(open_table(path, H200), path)
    before = path.read_text()
    probe(path)
    assert (list(path.parent.iterdir()), path.read_text()) == ([path], before)
    below_a_file = path / "table.json"
    for write in (probe, lambda path: write_table(read_table(tmp_path / path.parent), path)):
        with pytest.raises(OutputError, match=r"table\.json cannot be written: "):
            write(below_a_file)


def test_what_is_in_the_way_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("{}")
    with pytest.raises(PlanTableError, match=r"table\.json"):
        open_table(path, H200)
    write_table(open_table(tmp_path / "none", KNOWN_DEVICES["nvidia-l4"]), path)
    with pytest.raises(ValueError, match=r"measured on NVIDIA L4 .* but this is NVIDIA H200"):
        open_table(path, H200)
