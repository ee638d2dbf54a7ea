"""What a client may register, and what a request may point at."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.fakes import COLUMNS, MODELS, PAIR

from gatefuse.errors import AlreadyExists, InvalidRequest, NotFound, Unsupported
from gatefuse.frontend.requests import codec
from gatefuse.frontend.shared_memory import (
    Regions,
    RegionSlice,
    Registration,
    Registry,
    SystemRegion,
)
from gatefuse.frontend.shared_memory.region import inspect
from gatefuse.frontend.shared_memory.regions import region_slice
from gatefuse_protos import open_inference_pb2 as pb

SIZE = 10_007  # no multiple of a page


class Shm:
    """A shared-memory object of the test's own, locked as our client locks its."""

    def __init__(self, size: int = SIZE, key: str = "") -> None:
        self.key = key or f"/gatefuse-test-{os.getpid()}-{os.urandom(4).hex()}"
        self.path = Path("/dev/shm") / self.key[1:]
        self.path.write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))
        self._owner = self.path.open("rb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def die(self) -> None:
        """As when the client is killed: the lock is gone, the object is there."""
        self._owner.close()

    def registration(self, name: str = "r", offset: int = 0, size: int = SIZE) -> Registration:
        return Registration(name, size, self.key, offset, inspect(self.key, offset, size))


@pytest.fixture
def shm() -> Iterator[Shm]:
    made = Shm()
    yield made
    made.die()
    made.path.unlink(missing_ok=True)


@pytest.fixture
def regions(tmp_path: Path) -> Regions:
    return Regions(Registry(tmp_path / "regions"))


def _parameters(
    region: str = "r", size: int = 100, offset: int | None = None
) -> pb.ModelInferRequest.InferInputTensor:
    tensor = pb.ModelInferRequest.InferInputTensor()
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    if offset is not None:
        tensor.parameters["shared_memory_offset"].int64_param = offset
    return tensor


@pytest.mark.parametrize("offset", [0, 1, 4097])
def test_rows_are_read_and_written_in_place(shm: Shm, regions: Regions, offset: int) -> None:
    size = SIZE - offset
    regions.registry.add(shm.registration(offset=offset, size=size))
    content = bytearray(shm.path.read_bytes())
    part = RegionSlice(regions.find("r"), 5, 5000)
    assert len(part) == 5000
    target = memoryview(bytearray(3000))
    part.part(7, 3000).read_into(target)
    assert target == content[offset + 12 :][:3000]
    part.part(1000, 33).write(memoryview(b"\xa5" * 33))
    content[offset + 1005 : offset + 1038] = b"\xa5" * 33
    assert shm.path.read_bytes() == content


def test_every_frontend_sees_what_one_registered(shm: Shm, tmp_path: Path) -> None:
    here, there = (Regions(Registry(tmp_path / "regions")) for _ in range(2))
    here.registry.add(shm.registration())
    first = there.find("r")
    assert there.find("r") is first
    with pytest.raises(AlreadyExists, match="'r'"):
        there.registry.add(shm.registration())
    there.registry.remove("r")
    with pytest.raises(NotFound, match="'r'"):
        here.find("r")
    here.registry.add(shm.registration(offset=8, size=100))
    second = there.find("r")
    assert second is not first
    assert second.byte_size == 100
    assert [found.name for found in there.registry.all()] == ["r"]
    assert [file.name for file in (tmp_path / "regions").iterdir() if "." in file.name] == []


def test_a_region_is_closed_when_unregistered_and_unused(shm: Shm, regions: Regions) -> None:
    regions.registry.add(shm.registration())
    in_flight = RegionSlice(regions.find("r"), 0, 4)
    assert isinstance(in_flight.region, SystemRegion)
    fd = in_flight.region.fd
    regions.registry.remove("r")
    regions.sweep()
    target = memoryview(bytearray(4))
    in_flight.read_into(target)
    assert target == bytes(range(4))
    del in_flight
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "..", "/..", "a/b", "/a/b", "../etc/passwd", "//a", "a\0b", "a\nb", "x" * 256],
)
def test_keys_that_are_no_names_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="key must be the name"):
        inspect(key, 0, 1)


def test_what_is_no_shared_memory_object_is_refused(tmp_path: Path) -> None:
    name = f"gatefuse-test-{os.getpid()}"
    place = Path("/dev/shm") / name
    target = tmp_path / "file"
    target.write_bytes(bytes(100))
    kinds: tuple[Callable[[], None], ...] = (
        place.mkdir,
        lambda: place.symlink_to(target),
        lambda: os.mkfifo(place),
    )
    for make in kinds:
        make()
        try:
            with pytest.raises(InvalidRequest, match="no shared memory object"):
                inspect(name, 0, 1)
        finally:
            place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
    with pytest.raises(InvalidRequest, match="no shared memory object"):
        inspect(name, 0, 1)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 0), (0, SIZE + 1), (1, SIZE), (SIZE, 1), (2**64 - 1, 1), (1, 2**64 - 1), (2**63, 2**63)],
)
def test_sizes_beyond_the_object_are_refused(shm: Shm, offset: int, size: int) -> None:
    with pytest.raises(InvalidRequest, match="byte_size"):
        inspect(shm.key, offset, size)


def test_another_object_of_the_same_key_is_not_the_region(shm: Shm, regions: Regions) -> None:
    other = Shm()
    other.die()
    regions.registry.add(shm.registration())
    other.path.rename(shm.path)
    with pytest.raises(InvalidRequest, match="another shared memory object"):
        regions.find("r")


def test_memory_that_its_client_shortens_is_an_error(shm: Shm, regions: Regions) -> None:
    regions.registry.add(shm.registration())
    part = RegionSlice(regions.find("r"), 0, SIZE)
    os.truncate(shm.path, SIZE - 1)
    with pytest.raises(InvalidRequest, match="region 'r' is shorter"):
        part.read_into(memoryview(bytearray(SIZE)))
    with pytest.raises(InvalidRequest, match="region 'r' is shorter"):
        part.write(memoryview(bytearray(SIZE)))
    assert shm.path.stat().st_size == SIZE - 1


@pytest.mark.parametrize("name", ["", "n" * 257])
def test_names_that_cannot_be_kept_are_refused(shm: Shm, regions: Regions, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name must have"):
        regions.registry.add(shm.registration(name))


@pytest.mark.parametrize("name", ["../../x", "a/b", "ü" * 256, "\n", "."])
def test_any_name_is_kept(shm: Shm, regions: Regions, name: str) -> None:
    regions.registry.add(shm.registration(name))
    assert regions.find(name).name == name
    regions.registry.remove(name)
    regions.registry.remove(name)
    assert not list(regions.registry.all())


def test_slices_within_the_region(shm: Shm, regions: Regions) -> None:
    regions.registry.add(shm.registration())
    found = region_slice(_parameters(size=100, offset=SIZE - 100).parameters, "x", 100, regions)
    assert (found.start, found.size) == (SIZE - 100, 100)
    assert region_slice(_parameters(size=SIZE).parameters, "x", 100, regions).start == 0


@pytest.mark.parametrize(
    ("size", "offset"),
    [(SIZE + 1, 0), (SIZE, 1), (-1, 0), (1, -1), (2**63 - 1, 2**63 - 1), (100, SIZE - 99)],
)
def test_slices_beyond_the_region(shm: Shm, regions: Regions, size: int, offset: int) -> None:
    regions.registry.add(shm.registration())
    with pytest.raises(InvalidRequest, match="within shared memory region 'r'"):
        region_slice(_parameters(size=size, offset=offset).parameters, "x", 0, regions)


def test_too_little_room_names_the_region(shm: Shm, regions: Regions) -> None:
    regions.registry.add(shm.registration())
    with pytest.raises(InvalidRequest, match=r"output 'y' needs 101 bytes, 100 .* region 'r'"):
        region_slice(_parameters(size=100).parameters, "output 'y'", 101, regions)


def test_parameters_of_wrong_types(regions: Regions) -> None:
    for key, field in (
        ("shared_memory_region", "int64_param"),
        ("shared_memory_byte_size", "uint64_param"),
        ("shared_memory_offset", "double_param"),
    ):
        tensor = _parameters()
        setattr(tensor.parameters[key], field, 1)
        with pytest.raises(InvalidRequest, match=key):
            region_slice(tensor.parameters, "x", 0, regions)
    tensor = _parameters()
    del tensor.parameters["shared_memory_byte_size"]
    with pytest.raises(InvalidRequest, match="shared_memory_byte_size"):
        region_slice(tensor.parameters, "x", 0, regions)


def test_off_and_unknown(regions: Regions) -> None:
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        region_slice(_parameters().parameters, "x", 0, None)
    with pytest.raises(NotFound, match="'r'"):
        region_slice(_parameters().parameters, "x", 0, regions)


@pytest.mark.parametrize(
    ("name", "is_left"),
    [(f"gatefuse-12-{'0a' * 16}", False), ("rows", True), ("gatefuse-12-0a", True)],
)
def test_what_our_own_client_left_behind_is_closed(
    shm: Shm, regions: Regions, name: str, is_left: bool
) -> None:
    """Another one's region may go on being used when its object has no name any more."""
    regions.registry.add(shm.registration(name))
    fd = _fd_of(regions, name)
    regions.sweep()
    assert regions.registry.get(name)
    shm.path.unlink()
    regions.sweep()
    gc.collect()
    assert (regions.registry.get(name) is not None) is is_left
    assert _is_open(fd) is is_left


CLIENTS = f"gatefuse-12-{'0a' * 16}"


@pytest.mark.parametrize(
    ("name", "is_left"), [(CLIENTS, False), ("rows", True)], ids=["our client's", "another's"]
)
@pytest.mark.parametrize("is_of_before", [False, True])
def test_what_was_registered_and_never_used_is_dropped_too(
    shm: Shm, tmp_path: Path, name: str, is_left: bool, is_of_before: bool
) -> None:
    registry = Registry(tmp_path / "regions")
    if is_of_before:
        registry.add(shm.registration(name))
    regions = Regions(registry)
    if not is_of_before:
        regions.add(shm.registration(name))
    regions.sweep()
    assert registry.get(name)
    shm.path.unlink()
    regions.sweep()
    assert (registry.get(name) is not None) is is_left


@pytest.fixture
def clients() -> Iterator[Shm]:
    """An object under the name that our own client would give it."""
    made = Shm(key=f"/gatefuse-12-{os.urandom(16).hex()}")
    yield made
    made.die()
    made.path.unlink(missing_ok=True)


@pytest.mark.parametrize("is_used", [False, True], ids=["never used", "used"])
def test_what_a_killed_client_left_is_taken_away(
    clients: Shm, regions: Regions, is_used: bool
) -> None:
    name = clients.key[1:]
    regions.add(clients.registration(name))
    fd = _fd_of(regions, name) if is_used else -1
    regions.sweep()
    assert regions.registry.get(name)
    clients.die()
    regions.sweep()
    gc.collect()
    assert regions.registry.get(name) is None
    assert not clients.path.exists()
    assert not _is_open(fd)


@pytest.mark.parametrize("is_used", [False, True], ids=["never used", "used"])
def test_only_an_object_of_the_regions_own_name_is_taken_away(
    shm: Shm, regions: Regions, is_used: bool
) -> None:
    """Whoever reaches the port chooses the name and the key: that must not delete other people's memory."""
    regions.add(shm.registration(CLIENTS))
    if is_used:
        regions.find(CLIENTS)
    shm.die()
    regions.sweep()
    assert regions.registry.get(CLIENTS) is None
    assert shm.path.exists()


def test_another_ones_region_needs_no_lock(shm: Shm, regions: Regions) -> None:
    regions.add(shm.registration("rows"))
    regions.find("rows")
    shm.die()
    regions.sweep()
    assert regions.registry.get("rows")
    assert shm.path.exists()


def test_another_object_under_the_key_is_not_what_was_registered(
    shm: Shm, regions: Regions
) -> None:
    regions.add(shm.registration(CLIENTS))
    shm.path.rename(aside := shm.path.with_suffix(".aside"))
    shm.path.write_bytes(bytes(SIZE))
    regions.sweep()
    aside.unlink()
    assert regions.registry.get(CLIENTS) is None


def test_a_name_that_was_given_again_is_left(shm: Shm, regions: Regions) -> None:
    regions.add(shm.registration(CLIENTS))
    regions.registry.remove(CLIENTS)
    other = shm.registration(CLIENTS, size=SIZE - 1)
    regions.registry.add(other)
    shm.path.unlink()
    regions.sweep()
    # It is the frontend's that took the registration.
    assert regions.registry.get(CLIENTS) == other


def test_more_than_one_sweep_looks_at_are_looked_at_in_turn(shm: Shm, regions: Regions) -> None:
    names = [f"gatefuse-12-{number:032x}" for number in range(150)]
    for name in names:
        regions.add(shm.registration(name))
    regions.sweep()
    shm.path.unlink()
    for _ in range(3):
        regions.sweep()
    assert list(regions.registry.all()) == []


def _fd_of(regions: Regions, name: str) -> int:
    region = regions.find(name)
    assert isinstance(region, SystemRegion)
    return region.fd


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _in_place(offsets: dict[str, tuple[int, ...]]) -> pb.ModelInferRequest:
    """A request of two rows whose tensors lie in region r at these offsets."""
    request = pb.ModelInferRequest(model_name="pair")
    size_bytes = 2 * COLUMNS * 4
    inputs = [
        request.inputs.add(name=name, datatype="FP32", shape=[2, COLUMNS]) for name in PAIR.inputs
    ]
    outputs = [request.outputs.add(name=name) for name in PAIR.outputs]
    tensors: list[Any] = [*inputs, *outputs]
    for tensor, offset in zip(tensors, offsets["inputs"] + offsets["outputs"], strict=True):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = size_bytes
        tensor.parameters["shared_memory_offset"].int64_param = offset
    return request


@pytest.mark.parametrize("outputs", [(200, 300), (0, 100), (100, 0), (24, 124), (224, 200)])
def test_answers_apart_from_the_rows_or_in_their_place(
    shm: Shm, regions: Regions, outputs: tuple[int, int]
) -> None:
    regions.registry.add(shm.registration())
    request = codec.decode(
        _in_place({"inputs": (0, 100), "outputs": outputs}), MODELS, regions=regions
    )
    assert [target and target.start for target in request.targets] == [*outputs]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ((1, 300), "an output overlaps an input"),
        ((300, 77), "an output overlaps an input"),
        ((300, 300), "two outputs overlap"),
        ((300, 323), "two outputs overlap"),
        ((0, 0), "two outputs overlap"),
    ],
)
def test_answers_that_would_be_written_over_others(
    shm: Shm, regions: Regions, outputs: tuple[int, int], text: str
) -> None:
    regions.registry.add(shm.registration())
    request = _in_place({"inputs": (0, 100), "outputs": outputs})
    with pytest.raises(InvalidRequest, match=text):
        codec.decode(request, MODELS, regions=regions)
