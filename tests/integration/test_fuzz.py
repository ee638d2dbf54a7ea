"""Broken messages by the thousand: the right status each time, no process lost, memory bounded, every one counted.

`FUZZ_MESSAGES=100000` sends more than the usual number.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import grpc
import grpc.aio
import psutil
import pytest
from tests.integration.harness import CHECKPOINT, Service, Start
from tests.integration.mutations import COLUMNS, allowed, messages, parsed

from gatefuse.client.messages import method
from gatefuse_protos import open_inference_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "10000"))
IN_FLIGHT = 32
SEED = 20
GROWTH_BYTES = 48 * 2**20
OK = grpc.StatusCode.OK


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    gate = {"kind": "elementwise", "dtype": "fp32", "columns": COLUMNS}
    return start(
        {
            "device": "cpu",
            "worker_threads": 1,
            "models": [
                {"name": "llama-ffn", "checkpoint": str(CHECKPOINT), "backend": "fused"},
                {**gate, "name": "identity", "expression": "y = x"},
                {**gate, "name": "pair", "expression": "y = a + b; z = a - b"},
            ],
        }
    )


class Fuzz:
    """Sends messages, so many at once, and holds every answer to what it may be."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._source = source

    def run(self, url: str) -> None:
        asyncio.run(self._all(url))

    async def _all(self, url: str) -> None:
        async with grpc.aio.insecure_channel(url) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary(method("ModelInfer"))
            await asyncio.gather(*(self._some(call) for _ in range(IN_FLIGHT)))

    async def _some(self, call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        for message in self._source:
            answer, text = b"", ""
            try:
                answer = await call(message, timeout=60)
                code = OK
            except grpc.aio.AioRpcError as error:
                code, text = error.code(), error.details() or ""
            self.ended[code.name] += 1
            request = parsed(message)
            if code not in allowed(request):
                self.wrong.append(f"{code.name} {text}: {str(request)[:300]}")
            elif code is OK and request is not None and not _is_right(request, answer):
                self.wrong.append(f"another answer: {str(request)[:300]}")


def _is_right(request: pb.ModelInferRequest, answer: bytes) -> bool:
    """Of the identity in FP32 the answer is the request's own bytes; its id is always the request's."""
    response = pb.ModelInferResponse.FromString(answer)
    if response.id != request.id:
        return False
    plain = request.model_name == "identity" and request.inputs[0].datatype == "FP32"
    if not plain or not request.raw_input_contents:
        return True
    return list(response.raw_output_contents) == list(request.raw_input_contents)


def _resident(pids: list[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def test_broken_messages(service: Service) -> None:
    pids = [*service.frontend_pids(), *service.worker_pids()]
    before = service.scrape_idle()
    warm_up = Fuzz(messages(MESSAGES // 10, SEED))
    warm_up.run(service.url)
    resident = _resident(pids)
    fuzz = Fuzz(messages(MESSAGES - MESSAGES // 10, SEED + 1))
    fuzz.run(service.url)
    assert warm_up.wrong + fuzz.wrong == []
    assert pids == [*service.frontend_pids(), *service.worker_pids()]
    assert _resident(pids) - resident < GROWTH_BYTES
    sent = warm_up.ended + fuzz.ended
    # All kinds of ends were met, and each is counted as the client saw it.
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"} <= set(sent)
    assert min(sent["OK"], sent["INVALID_ARGUMENT"]) > MESSAGES / 20
    after = service.scrape_idle()
    counted = after.by_label("gatefuse_requests_total", "code", method="ModelInfer")
    had = before.by_label("gatefuse_requests_total", "code", method="ModelInfer")
    assert {code: n - had.get(code, 0) for code, n in counted.items()} == sent
    assert "internal error" not in service.log
