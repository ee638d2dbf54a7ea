"""ModelStatistics: every request once, with times that add up."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from tests.service.bed import TestBed, refused

from gatefuse.frontend.rpc.statistics import model_statistics
from gatefuse.frontend.statistics import BatchSums, Sums
from gatefuse_protos import open_inference_pb2 as pb


def test_sums_in_the_words_of_the_protocol() -> None:
    batch = BatchSums(3, 2, 0.1, 0.2, 0.3)
    sums = Sums(99, 9, 4, 5, 1.5, 6, 0.5, 0.25, 0.125, 0.0625, 1e-9, (batch,))
    Duration = pb.StatisticDuration
    assert model_statistics("ffn", sums) == pb.ModelStatistics(
        name="ffn",
        version="1",
        last_inference=99,
        inference_count=9,
        execution_count=4,
        inference_stats=pb.InferStatistics(
            success=Duration(count=5, ns=1_500_000_000),
            fail=Duration(count=6, ns=500_000_000),
            queue=Duration(count=5, ns=250_000_000),
            compute_input=Duration(count=5, ns=125_000_000),
            compute_infer=Duration(count=5, ns=62_500_000),
            compute_output=Duration(count=5, ns=1),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=3,
                compute_input=Duration(count=2, ns=100_000_000),
                compute_infer=Duration(count=2, ns=200_000_000),
                compute_output=Duration(count=2, ns=300_000_000),
            )
        ],
    )


async def _statistics(bed: TestBed, name: str = "ffn") -> pb.ModelStatistics:
    (statistics,) = (await bed.call("ModelStatistics", name=name)).model_stats
    assert isinstance(statistics, pb.ModelStatistics)
    return statistics


@pytest.mark.asyncio
async def test_rows_batches_and_requests_are_counted(bed: TestBed) -> None:
    bed.worker()
    assert (await _statistics(bed)).inference_count == 0
    started_ms = time.time() * 1e3
    for rows in (2, 3, 2, 19):  # 19 rows are batches of 8, 8 and 3
        await bed.infer(rows)
    wrong_shape = bed.infer(model_version="2")
    await refused(wrong_shape)
    statistics = await _statistics(bed)
    assert (statistics.inference_count, statistics.execution_count) == (26, 6)
    assert started_ms - 1 <= statistics.last_inference <= time.time() * 1e3
    stats = statistics.inference_stats
    assert (stats.success.count, stats.fail.count) == (4, 1)
    assert stats.fail.ns > 0
    assert {batch.batch_size: batch.compute_infer.count for batch in statistics.batch_stats} == {
        2: 2, 3: 2, 8: 2,
    }  # fmt: skip
    for duration in (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output):
        assert duration.count == 4
    # The fake worker says that each batch was half a second at it.
    assert stats.compute_infer.ns == 4 * 500_000_000
    assert (await _statistics(bed, "deep")).inference_stats.success.count == 0


@pytest.mark.asyncio
async def test_all_models_or_one(bed: TestBed) -> None:
    bed.worker()
    everything = (await bed.call("ModelStatistics")).model_stats
    assert {model.name for model in everything} >= {"ffn", "deep", "scale"}
    cases: tuple[tuple[dict[str, Any], grpc.StatusCode], ...] = (
        ({"name": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"name": "ffn", "version": "2"}, grpc.StatusCode.NOT_FOUND),
        ({"name": "ffn", "version": "-1"}, grpc.StatusCode.INVALID_ARGUMENT),
    )
    for fields, status in cases:
        code, _ = await refused(bed.call("ModelStatistics", **fields))
        assert code is status


@pytest.mark.asyncio
async def test_a_model_that_nobody_has_loaded_has_no_statistics(bed: TestBed) -> None:
    code, _ = await refused(bed.call("ModelStatistics", name="ffn"))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert not (await bed.call("ModelStatistics")).model_stats


@pytest.mark.asyncio
async def test_whoever_gets_no_rows_is_a_failure(bed: TestBed) -> None:
    worker = bed.worker(eager=False)
    call = bed.infer()
    await worker.got_batch.wait()
    call.cancel()
    late = bed.infer(timeout=0.05)
    code, _ = await refused(late)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    for _ in range(100):
        stats = (await _statistics(bed)).inference_stats
        if stats.fail.count == 2:
            break
    assert (stats.success.count, stats.fail.count) == (0, 2)
