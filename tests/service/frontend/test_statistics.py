"""What models did: kept in files, summed over processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gatefuse.frontend.statistics import BatchSums, BatchTimes, StatisticsBook, Sums


def _count(book: StatisticsBook, model: str, max_batch_rows: int, rows: int) -> None:
    """One batch of one request."""
    statistics = book.open(model, max_batch_rows)
    times = BatchTimes(0.25, 0.5)
    times.output_s = 0.125
    statistics.computed(rows, times)
    statistics.answered(rows, 2.0, 1.0, times)


@pytest.mark.parametrize("in_files", [True, False])
def test_what_was_counted_is_told(in_files: bool, tmp_path: Path) -> None:
    book = StatisticsBook(tmp_path if in_files else None)
    before_ms = time.time() * 1e3
    _count(book, "ffn", 8, 3)
    book.failed("ffn", 0.5)
    sums = book.sums("ffn")
    assert before_ms - 1 <= sums.last_ms <= time.time() * 1e3
    batch = BatchSums(3, 1, 0.25, 0.5, 0.125)
    assert sums == Sums(sums.last_ms, 3, 1, 1, 2.0, 1, 0.5, 1.0, 0.25, 0.5, 0.125, (batch,))


def test_the_largest_batch_has_its_place() -> None:
    book = StatisticsBook()
    _count(book, "ffn", 7, 7)
    assert [batch.rows for batch in book.sums("ffn").by_rows] == [7]


def test_processes_are_summed_and_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second has larger batches: the model was loaded again with another limit in between.
    for pid, largest, rows in ((11, 4, 4), (12, 16, 9), (11, 16, 9)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        _count(StatisticsBook(tmp_path), "ffn", largest, rows)
    sums = StatisticsBook(tmp_path).sums("ffn")
    assert (sums.rows, sums.batches, sums.answered, sums.answered_s) == (22, 3, 3, 6.0)
    assert [(batch.rows, batch.batches) for batch in sums.by_rows] == [(4, 1), (9, 2)]


def test_models_are_counted_apart(tmp_path: Path) -> None:
    book = StatisticsBook(tmp_path)
    _count(book, "ffn", 8, 2)
    _count(book, "ffn-2", 8, 5)
    assert (book.sums("ffn").rows, book.sums("ffn-2").rows) == (2, 5)


def test_a_name_that_no_model_has_counts_nothing(tmp_path: Path) -> None:
    book = StatisticsBook(tmp_path)
    book.failed("../other", 1.0)
    assert book.sums("other") == Sums()
    assert list(tmp_path.iterdir()) == []
