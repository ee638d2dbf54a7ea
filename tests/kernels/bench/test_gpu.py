"""The bench itself on a real GPU: small shapes, every form, timings that can be told apart."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gatefuse_kernels.bench import streams
from gatefuse_kernels.bench.copies import weight_copies
from gatefuse_kernels.bench.elementwise import measure_gate
from gatefuse_kernels.bench.floor import measure_floor
from gatefuse_kernels.bench.invariance import check_invariance
from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.peers import all_peers
from gatefuse_kernels.bench.results import Report, State
from gatefuse_kernels.bench.run import run_bench
from gatefuse_kernels.bench.timing import Pace, host_time, take_turns
from gatefuse_kernels.shapes import DType, MlpShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]

SHAPE = MlpShape(512, 1536)
CUDA = torch.device("cuda")
PACE = Pace(20, 0.2)


@pytest.mark.parametrize("reader", streams.READERS, ids=str)
def test_readers_read_everything(reader: streams.Reader) -> None:
    """A word that two programs read, or none, changes the exclusive or of all."""
    words = torch.randint(-(2**31), 2**31 - 1, (3_000_016,), dtype=torch.int32, device=CUDA)
    folded = torch.zeros(reader.grid(words.numel(), 132), dtype=torch.int32, device=CUDA)
    streams.launch_read(reader, words, folded, 132)
    assert _fold(folded) == _fold(words)


def _fold(words: torch.Tensor) -> int:
    bits = (words.cpu()[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    return sum(int(odd) << bit for bit, odd in enumerate((bits.sum(dim=0) % 2).tolist()))


def test_copies_are_equal_and_apart() -> None:
    copies = weight_copies(SHAPE, DType.BF16, CUDA)
    l2_bytes = torch.cuda.get_device_properties(CUDA).L2_cache_size
    assert sum(copy.weights.nbytes for copy in copies) >= 4 * l2_bytes
    assert len({copy.memory.data_ptr() for copy in copies}) == len(copies)
    assert torch.equal(copies[0].memory, copies[-1].memory)


def test_twice_the_work_takes_twice_the_time() -> None:
    short, long = (partial(torch.cuda._sleep, cycles) for cycles in (100_000, 200_000))
    one, two = take_turns([[short, short], [long]], PACE)
    assert two.median_us / one.median_us == pytest.approx(2, rel=0.1)
    assert one.p10_us <= one.median_us <= one.p90_us


def test_host_time_is_not_device_time() -> None:
    cycles = 2_000_000
    found = host_time(lambda: torch.cuda._sleep(cycles), device_us=1000)
    assert found.median_us < 200


def test_the_floor_is_the_fastest_reader() -> None:
    copies = weight_copies(MlpShape(2048, 6144), DType.BF16, CUDA)
    floor, read = measure_floor(copies, PACE)
    assert floor.readers_us[floor.reader] == min(floor.readers_us.values())
    assert len(floor.readers_us) == len(streams.READERS) + 1
    assert len(read) == len(copies)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_the_gate(dtype: DType) -> None:
    found = measure_gate(10_000_000, dtype, PACE)
    assert found is not None
    assert found.elements == 9_994_240


def test_invariance() -> None:
    (weights,) = (copy.weights for copy in weight_copies(SHAPE, DType.BF16, CUDA)[:1])
    found = check_invariance(weights, 50, 100)
    assert found.different_rows == 0
    assert found.compositions == 50
    assert 64 < found.largest_rows <= 100


def test_a_run() -> None:
    kept: list[Report] = []
    peers = ("eager", "compiled", "merged", "flash_swiglu", "liger")
    options = Options(
        shapes=(SHAPE,),
        rows=(1, 40),
        rounds=20,
        peers=peers,
        elements=0,
        deterministic=True,
        compositions=20,
        jobs=2,
    )
    said: list[str] = []
    report = run_bench(options, said.append, kept.append)
    assert [point.rows for point in report.points] == [1, 40], said
    assert kept[-1].points == report.points
    assert report.problems == ()
    for point in report.points:
        assert sum(point.kernels.values()) == point.ours.launches
        assert point.deterministic is not None
        states = {name: peer.state for name, peer in point.peers.items()}
        installed = {name for name in peers if all_peers()[name].version}
        assert states == {
            name: State.OK if name in installed else State.NOT_INSTALLED for name in peers
        }, said
        merged = point.peers["merged"].measured
        assert merged is not None
        assert merged.launches >= 3


def test_a_run_out_of_time_says_what_it_left_out() -> None:
    options = Options(shapes=(SHAPE,), rows=(1,), peers=(), elements=0, budget_s=1e-9)
    report = run_bench(options, lambda line: None, lambda report: None)
    assert report.points == ()
    assert report.not_measured == (str(SHAPE),)
