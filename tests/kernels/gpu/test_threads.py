"""Several threads, several streams, and captures while others work."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.kernels.cases import call, make_rows, make_weights, noise
from tests.kernels.gpu.forms import CUDA, FORMS, build
from tests.kernels.gpu.watching import same_bits

from gatefuse_kernels import gated

pytestmark = pytest.mark.gpu

THREADS = 8


def together(work: Callable[[int], bool]) -> list[bool]:
    """What `work(number)` returns in each of several threads that start at once, each on a stream of its own."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> bool:
        torch.cuda.set_device(0)
        stream = torch.cuda.Stream()
        start.wait()
        with torch.cuda.stream(stream):
            result = work(number)
        stream.synchronize()
        return result

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


@pytest.mark.parametrize("form", FORMS)
def test_threads_on_their_own_streams(form: str) -> None:
    """triton#11494, #3095: an autotuner's shared arguments were None in the second thread."""
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, 100)
    inputs = [make_rows(1 + 13 * number, weights) for number in range(THREADS)]
    expected = [call(mlp, x) for x in inputs]
    torch.cuda.synchronize()

    def work(number: int) -> bool:
        own = build(form, weights, 100)
        return all(same_bits(call(own, inputs[number]), expected[number]) for _ in range(50))

    assert all(together(work))


def test_first_calls_at_once() -> None:
    """A width that nobody has used: every thread finds it not compiled."""
    weights = make_weights(328, 424, device=CUDA)
    x = make_rows(21, weights)
    torch.cuda.synchronize()
    answers: list[torch.Tensor | None] = [None] * THREADS

    def work(number: int) -> bool:
        answers[number] = call(build("fused", weights, 32), x)
        return True

    assert all(together(work))
    torch.cuda.synchronize()
    first = answers[0]
    assert first is not None
    assert all(answer is not None and same_bits(answer, first) for answer in answers)


def test_the_gate_in_threads() -> None:
    gate, up = noise(65, 2 * 688, dtype=torch.bfloat16, device=CUDA).chunk(2, dim=1)
    expected = gated(gate, up)
    torch.cuda.synchronize()
    assert all(together(lambda _: all(same_bits(gated(gate, up), expected) for _ in range(100))))


@pytest.mark.parametrize("form", FORMS)
def test_beside_a_stream_that_keeps_the_device_busy(form: str) -> None:
    """pytorch#169492, b12x#32: programs that wait for one another hang if others hold the multiprocessors."""
    weights = make_weights(2048, 6144, device=CUDA)
    mlp = build(form, weights, 64)
    mlp.warm_up()
    x = make_rows(16, weights)
    expected = call(mlp, x)
    big = noise(4096, 4096, dtype=torch.bfloat16, device=CUDA)
    torch.cuda.synchronize()
    busy, own = torch.cuda.Stream(), torch.cuda.Stream()
    answers = []
    for _ in range(20):
        with torch.cuda.stream(busy):
            for _ in range(5):
                torch.mm(big, big)
        with torch.cuda.stream(own):
            answers.append(call(mlp, x))
    torch.cuda.synchronize()
    assert all(same_bits(answer, expected) for answer in answers)


@pytest.mark.parametrize("form", FORMS)
def test_a_capture_while_another_thread_allocates_and_computes(form: str) -> None:
    """roboflow/inference#2866: in the default, global capture mode unrelated threads fail."""
    weights = make_weights(256, 688, device=CUDA)
    mlp = build(form, weights, 64)
    mlp.warm_up()
    x = make_rows(64, weights)
    expected = call(mlp, x)
    torch.cuda.synchronize()
    done = threading.Event()
    failures: list[BaseException] = []

    def disturb() -> None:
        try:
            torch.cuda.set_device(0)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                size = 1
                while not done.is_set():
                    # A capture empties the cache when it begins: these reach cudaMalloc again.
                    size = size % 50 + 1
                    memory = torch.ones(size << 19, device=CUDA)
                    memory.mul_(2)
                    stream.synchronize()
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=disturb)
    other.start()
    try:
        for _ in range(20):
            out = torch.full_like(x, math.nan)
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                mlp(x, out)
            graph.replay()
            assert same_bits(out, expected)
    finally:
        done.set()
        other.join()
    assert failures == []
