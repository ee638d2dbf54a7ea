"""Nsight Compute's command line and output, without a GPU."""

from __future__ import annotations

import pytest
from tests.kernels.audit import samples
from tests.kernels.audit.samples import DOWN, GATE_UP, MARKER, ONE_CALL, SPLIT, SPUN

from gatefuse_kernels.audit.counters import (
    METRICS,
    Counted,
    CountersError,
    calls_of,
    command,
    explain,
    parse,
)


def test_a_recorded_run() -> None:
    spin, gate_up, down = parse(ONE_CALL)
    assert spin.kernel == MARKER
    assert gate_up == Counted(
        kernel=GATE_UP,
        dram_read_bytes=234_900_224,
        dram_written_bytes=2_734_080,
        l2_read_bytes=11_029_603 * 32,
        l2_written_bytes=898 * 32,
        seconds=gate_up.seconds,
    )
    assert gate_up.seconds == pytest.approx(54.944e-6)
    assert down.kernel == DOWN


def test_units_of_other_versions() -> None:
    text = samples.output((GATE_UP, samples.RAN_GATE_UP))
    text = text.replace('"byte","234,900,224"', '"Mbyte","234.9"').replace(
        '"ns","54,944"', '"us","54.94"'
    )
    (found,) = parse(text)
    assert found.dram_read_bytes == 234_900_000
    assert found.seconds == pytest.approx(54.94e-6)


def test_commas_in_a_kernels_name() -> None:
    (found,) = parse(samples.output((SPLIT, samples.RAN_DOWN)))
    assert found.kernel == SPLIT


def test_kernels_come_in_the_order_of_their_numbers() -> None:
    """Ten and more are sorted as numbers, whatever order the lines have."""
    lines = [samples.HEADER]
    for number in reversed(range(12)):
        lines += samples.kernel(number, f"kernel_{number}", samples.RAN_DOWN)
    assert [each.kernel for each in parse("\n".join(lines))] == [f"kernel_{n}" for n in range(12)]


def test_calls_begin_at_markers() -> None:
    marked = "void at::cuda::(anonymous namespace)::spin_kernel(long)"
    text = samples.output(
        ("compiled_before_any_call", samples.RAN_DOWN),
        (marked, SPUN),
        (GATE_UP, samples.RAN_GATE_UP),
        (DOWN, samples.RAN_DOWN),
        (marked, SPUN),
        (marked, SPUN),
        (DOWN, samples.RAN_DOWN),
    )
    calls = calls_of(parse(text))
    assert [[each.kernel for each in call] for call in calls] == [[GATE_UP, DOWN], [], [DOWN]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.",
            "NVreg_RestrictProfilingToAdminUsers",
        ),
        ("==ERROR== The application returned an error code (1).", "an error code"),
        (f"{samples.PREAMBLE}==WARNING== No kernels were profiled.", "no kernel was counted"),
        ("", "no kernel was counted"),
    ],
)
def test_why_there_is_no_table(text: str, words: str) -> None:
    assert words in explain(text)
    with pytest.raises(CountersError) as caught:
        parse(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_that_is_not_there(metric: str) -> None:
    lines = ONE_CALL.splitlines()
    kept = [line for line in lines if not (metric in line and GATE_UP in line)]
    with pytest.raises(CountersError, match=f"did not count {metric.replace('.', '[.]')}"):
        parse("\n".join(kept))


@pytest.mark.parametrize("value", ["n/a", "", "(!) nan"])
def test_a_value_that_is_no_number(value: str) -> None:
    with pytest.raises(CountersError, match="no number"):
        parse(ONE_CALL.replace("234,900,224", value))


def test_a_line_that_was_cut_off() -> None:
    cut = ONE_CALL.rstrip().rsplit(",", 2)[0]
    with pytest.raises(CountersError):
        parse(cut)


def test_the_command() -> None:
    """Cold caches, the program's own start and stop, and nothing that it starts."""
    made = command("ncu", ["python", "-m", "work", "in.json"])
    assert made[0] == "ncu"
    assert made[-4:] == ["python", "-m", "work", "in.json"]
    options = dict(zip(made[2:-4:2], made[3:-4:2], strict=True))
    assert options["--profile-from-start"] == "off"
    assert options["--cache-control"] == "all"
    assert options["--target-processes"] == "application-only"
    assert options["--metrics"].split(",") == list(METRICS)
