"""What the status page reads of the processes' files is what a scrape tells of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from gatefuse.metrics.reading import ProcessFiles, collected
from gatefuse.status.samples import Sample

Series = dict[tuple[str, tuple[tuple[str, str | float], ...]], float]

KINDS = (
    "counter",
    "histogram",
    *(f"gauge_{live}{mode}" for live in ("", "live") for mode in ("sum", "max", "min", "all")),
    "gauge_mostrecent",
    "gauge_livemostrecent",
)
BOUNDS = ("0.5", "2.0", "10.0", "+Inf")
values = st.integers(-(2**20), 2**20).map(lambda number: number / 2**8)
times = st.integers(1, 100).map(float)
# Process, kind, label's value, value, when it was set.
written = st.tuples(st.integers(1, 3), st.sampled_from(KINDS), st.sampled_from("ab"), values, times)


def _write(folder: Path, pid: int, kind: str, label: str, value: float, at_s: float) -> None:
    kept = MmapedDict(str(folder / f"{kind}_{pid}.db"))  # type: ignore[no-untyped-call]
    family = f"gatefuse_{kind}"
    labels = {"model": label, "backend": "eager"}

    def put(name: str, extra: dict[str, str], number: float) -> None:
        key = json.dumps([family, name, {**labels, **extra}, "Help."], sort_keys=True)
        kept.write_value(key, number, at_s)  # type: ignore[no-untyped-call]

    if kind == "histogram":
        put(f"{family}_sum", {}, value)
        for position, bound in enumerate(BOUNDS):
            put(f"{family}_bucket", {"le": bound}, abs(value) // (position + 1))
    else:
        put(f"{family}_total" if kind == "counter" else family, {}, value)
    kept.close()  # type: ignore[no-untyped-call]


def _key(name: str, labels: dict[str, str]) -> tuple[str, tuple[tuple[str, str | float], ...]]:
    return name, tuple(
        sorted((key, float(value) if key == "le" else value) for key, value in labels.items())
    )


def _scraped(folder: Path) -> Series:
    collector = MultiProcessCollector(CollectorRegistry(), str(folder))  # type: ignore[no-untyped-call]
    return {
        _key(sample.name, sample.labels): sample.value
        for family in collector.collect()  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


def _read(files: ProcessFiles) -> Series:
    return {_key(name, dict(labels)): value for name, labels, value in files.samples()}


@settings(deadline=None, max_examples=60)
@given(st.lists(written, max_size=12), st.lists(written, max_size=4))
def test_it_reads_what_the_collector_collects(
    first: list[tuple[int, str, str, float, float]],
    then: list[tuple[int, str, str, float, float]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = ProcessFiles(folder)
        for more in (first, then):
            for each in more:
                _write(folder, *each)
            assert _read(files) == _scraped(folder)


def test_gauges_of_a_process_that_died_are_gone_and_its_counts_stay(tmp_path: Path) -> None:
    files = ProcessFiles(tmp_path)
    for pid in (1, 2):
        _write(tmp_path, pid, "gauge_livesum", "a", 10.0, 1.0)
        _write(tmp_path, pid, "counter", "a", 1.0, 1.0)
    (tmp_path / "gauge_livesum_2.db").unlink()
    assert sorted(value for _, _, value in files.samples()) == [2.0, 10.0]


def test_a_file_that_vanishes_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, 1, "counter", "a", 1.0, 1.0)
    here = [*tmp_path.glob("*.db"), tmp_path / "gauge_livesum_9.db"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(here))
    assert [value for _, _, value in ProcessFiles(tmp_path).samples()] == [1.0]


def test_other_collectors_are_read_as_they_are() -> None:
    heat = Gauge("heat_celsius", "Heat.", ["device"], registry=None)
    heat.labels("cuda:0").set(61)
    assert list(collected([heat])) == [Sample("heat_celsius", {"device": "cuda:0"}, 61.0)]
