"""NVIDIA's perf_analyzer as it is, where it is installed: it runs, and counts what the server counts."""

from __future__ import annotations

import pytest
from benchmarks.perf_analyzer import MAX_DISAGREEMENT, Case, Report, Tool, cases, find_tool, parse
from tests.integration.harness import CHECKPOINT, Service, Start

from gatefuse.client.blocking import Client

PRINTED = """
Request concurrency: 4
  Client:
    Request count: 2796
    Throughput: 384.733 infer/sec
    Avg latency: 10360 usec (standard deviation 12994 usec)
  Server:
    Inference count: 5588
    Execution count: 2389
    Successful request count: 2794
    Avg request latency: 3039 usec (overhead 237 usec + queue 1203 usec + compute input 10 usec)
"""


def test_report_is_read() -> None:
    report = parse(PRINTED)
    assert report == Report(2796, 384.733, 10360.0, 2794, 5588, 2389, 3039.0)
    assert report.disagreement == pytest.approx(2 / 2796)
    with pytest.raises(ValueError, match="no server_requests in what perf_analyzer printed"):
        parse(PRINTED.replace("Successful", "Lost"))


def test_shared_memory_only_where_it_is_on() -> None:
    off = list(cases(["m"], shared_memory=False, concurrencies=[1], rates=[50]))
    assert {case.way for case in off} == {"unary", "stream"}
    on = list(cases(["m"], shared_memory=True, concurrencies=[1], rates=[50]))
    assert len(on) == 2 * len(off)


@pytest.fixture(scope="module")
def command() -> list[str]:
    command = find_tool(None)
    if command is None:
        pytest.skip("perf_analyzer is not installed: PERF_ANALYZER names its command")
    return command


@pytest.fixture(scope="module")
def service(start: Start, command: list[str]) -> Service:
    model = {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"}
    chain = {"name": "chain", "kind": "elementwise", "expression": "silu(g) * u"}
    return start({"device": "cpu", "allow_client_shm": True, "models": [model, chain]})


@pytest.mark.slow
@pytest.mark.parametrize("load", ["--concurrency-range=1", "--concurrency-range=32"])
@pytest.mark.parametrize("way", ["unary", "stream", "shared memory"])
@pytest.mark.parametrize("model", ["llama-ffn", "chain"])
def test_tool_and_server_agree(
    service: Service, command: list[str], model: str, way: str, load: str
) -> None:
    with Client(service.url) as client:
        metadata = client.model_metadata(model)
    report = Tool(command, service.url, window_ms=1500, rows=2).run(
        Case(model, way, load), metadata
    )
    assert report.requests > 0
    assert report.disagreement <= MAX_DISAGREEMENT
    assert report.server_inferences == 2 * report.server_requests
    assert report.server_executions <= report.server_requests
    assert report.server_latency_us <= report.latency_us
