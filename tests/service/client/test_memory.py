"""A client's regions: used again after an answer, never after a failure, gone when nobody can use them."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gatefuse.client import memory
from gatefuse.client.blocking import Client, InferenceError
from gatefuse.client.memory import FROM_BYTES, Region, RegionPool, padded, region_bytes

SIZE = 3 * 2**20


def _path(region: Region) -> Path:
    return Path("/dev/shm") / region.name


@pytest.fixture
def pool() -> RegionPool:
    return RegionPool()


def test_parts_do_not_touch(pool: RegionPool) -> None:
    lease = pool.add(Region(region_bytes(1001, 3)))
    first, second = lease.allocate(1001), lease.allocate(1001)
    answers = lease.allocate_outputs(["y"], 1001)
    first.view[:] = b"a" * 1001
    second.view[:] = b"b" * 1001
    answers["y"].view[:] = b"c" * 1001
    assert (first.offset, second.offset, answers["y"].offset) == (0, 1024, 2048)
    assert bytes(first.view) + bytes(second.view) == b"a" * 1001 + b"b" * 1001
    assert len({first.region, second.region, answers["y"].region}) == 1


def test_a_region_is_used_again_after_its_answer(pool: RegionPool) -> None:
    region = Region(SIZE)
    lease = pool.add(region)
    assert pool.take(SIZE) is None
    lease.give_back()
    lease.give_back()
    again = pool.take(SIZE - 1)
    assert again is not None
    assert again.allocate(1).region == region.name
    assert pool.take(1) is None
    assert _path(region).stat().st_size == SIZE


def test_the_smallest_that_is_large_enough_is_taken(pool: RegionPool) -> None:
    sizes = [4 * 2**20, 2**20, 2 * 2**20]
    for lease in [pool.add(Region(size)) for size in sizes]:
        lease.give_back()
    taken = pool.take(2**20 + 1)
    assert taken is not None
    assert len(taken.allocate(2 * 2**20).view) == 2 * 2**20
    assert pool.take(4 * 2**20 + 1) is None


def test_a_region_without_an_answer_is_never_used_again(pool: RegionPool) -> None:
    region = Region(SIZE)
    pool.add(region)
    gc.collect()
    assert pool.take(1) is None
    assert not _path(region).exists()
    assert pool.has_dropped
    pool.forget(region.name)
    assert not pool.has_dropped


def test_too_many_regions(pool: RegionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_REGIONS", 2)
    small, large = Region(2**20), Region(2 * 2**20)
    leases = [pool.add(region) for region in (large, small)]
    pool.make_room()
    full = [pool.full]
    for lease in leases:
        lease.give_back()
    pool.make_room()
    assert [*full, pool.full] == [True, False]
    assert [_path(region).exists() for region in (small, large)] == [False, True]
    pool.close()


def test_closing_removes_all(pool: RegionPool) -> None:
    regions = [Region(2**20) for _ in range(3)]
    leases = [pool.add(region) for region in regions]
    leases[0].give_back()
    pool.close()
    assert set(pool.take_dropped()) == {region.name for region in regions}
    assert not any(_path(region).exists() for region in regions)
    leases[1].give_back()
    assert pool.take(1) is None


def test_each_dropped_region_is_told_of_by_one(pool: RegionPool) -> None:
    for _ in range(5):
        pool.add(Region(2**20)).drop()
    first, second = pool.take_dropped(2), pool.take_dropped(2)
    assert not set(first) & set(second)
    pool.put_back(first)
    rest = pool.take_dropped()
    assert set(first) < set(rest)
    assert len({*rest, *second}) == 5
    assert not pool.has_dropped


def test_a_forked_child_leaves_its_parents_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    region = Region(2**20)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    region.unlink()  # as the child does when it ends
    assert _path(region).exists()
    _path(region).unlink()


def test_the_lock_goes_with_the_process_however_it_ends() -> None:
    program = """
import os, signal
from gatefuse.client.memory import Region
region = Region(2**20)
print(region.name, flush=True)
input()
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout
        path = Path("/dev/shm") / client.stdout.readline().strip()
        try:
            with path.open("rb") as file:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                client.communicate("\n", timeout=30)
                assert client.returncode == -signal.SIGKILL
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            path.unlink()


def test_a_region_that_is_gone_holds_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    region = Region(2**20)
    path = _path(region)
    del region
    gc.collect()
    assert not path.exists()
    assert set(os.listdir("/proc/self/fd")) == before


def test_no_room() -> None:
    before = set(Path("/dev/shm").iterdir())
    with pytest.raises(OSError, match=r"\[Errno"):
        Region(2**60)
    gc.collect()
    assert {
        path for path in set(Path("/dev/shm").iterdir()) - before if "gatefuse" in path.name
    } == set()


def test_sizes() -> None:
    assert [padded(size) for size in (0, 1, 256, 257)] == [0, 256, 256, 512]
    assert region_bytes(1, 1) == 2**20
    assert region_bytes(2**20, 2) == 2 * 2**20
    assert region_bytes(2**20 + 1, 2) == 3 * 2**20


def test_a_server_that_takes_no_memory(fake_url: str) -> None:
    x = np.random.default_rng(0).standard_normal((400, 256)).astype(np.float32)
    assert x.nbytes >= FROM_BYTES
    with Client(fake_url) as client:
        for _ in range(2):
            np.testing.assert_array_equal(client.infer("identity", x).output, x)
    with (
        Client(fake_url, shared_memory="on") as client,
        pytest.raises(InferenceError, match="UNIMPLEMENTED"),
    ):
        client.infer("identity", x)


def test_modes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="'maybe'"):
        Client("localhost:1", shared_memory="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one endpoint"):
        Client(["localhost:1", "localhost:2"], shared_memory="on")
