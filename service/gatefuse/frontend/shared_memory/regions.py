"""The regions that this process has open: each is opened at its first use and closed after its last."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from gatefuse.errors import InvalidRequest, NotFound, Unsupported
from gatefuse.frontend.shared_memory.cuda import CudaRegion
from gatefuse.frontend.shared_memory.region import (
    Region,
    RegionSlice,
    SystemRegion,
    open_registered,
    take_away_if_abandoned,
)
from gatefuse.frontend.shared_memory.registry import Registration, Registry, Version
from gatefuse.protocol_words import is_clients_region, not_registered

REGION = "shared_memory_region"
BYTE_SIZE = "shared_memory_byte_size"
OFFSET = "shared_memory_offset"
# Looked at in one sweep, of those that no request has used yet.
_LOOKED_AT = 64
OFF = "client shared memory is off: start the server with --allow-client-shm"


class Regions:
    """Finds the memory that requests point at."""

    def __init__(self, registry: Registry) -> None:
        """Of the regions in `registry`."""
        self.registry = registry
        self._open: dict[str, tuple[Version, Region]] = {}
        # Our own clients', in the order in which they are looked at. One that was registered before this process
        # was there may be another frontend's that has died.
        self._unused: dict[str, tuple[Version, Registration]] = {}
        for registration in registry.all():
            self._note(registration)

    def find(self, name: str) -> Region:
        """The region registered under a name.

        Raises:
            NotFound: there is none.
            InvalidRequest: it is no more what was registered.
        """
        version = self.registry.version(name)
        known = self._open.get(name)
        if known is not None and known[0] == version:
            return known[1]
        self._open.pop(name, None)
        registration = None if version is None else self.registry.get(name)
        if version is None or registration is None:
            raise NotFound(not_registered(name))
        region = CudaRegion(registration) if registration.on_gpu else open_registered(registration)
        self._open[name] = version, region
        return region

    def add(self, registration: Registration) -> None:
        """Registers a region. Raises as ``Registry.add``."""
        self.registry.add(registration)
        self._note(registration)

    def sweep(self) -> None:
        """Closes what is not registered any more, wherever that was said, and what a client left behind.

        A request that uses a region keeps it open.
        """
        for name, (version, region) in tuple(self._open.items()):
            if isinstance(region, SystemRegion) and region.take_away_if_abandoned():
                self.registry.remove(name)
            if self.registry.version(name) != version:
                del self._open[name]
        for name, (version, registration) in tuple(islice(self._unused.items(), _LOOKED_AT)):
            del self._unused[name]
            if name in self._open or self.registry.version(name) != version:
                continue
            if take_away_if_abandoned(registration):
                self.registry.remove(name)
            else:
                self._unused[name] = version, registration

    def _note(self, registration: Registration) -> None:
        if not is_clients_region(registration.name) or registration.on_gpu:
            return
        if (version := self.registry.version(registration.name)) is not None:
            self._unused[registration.name] = version, registration


def points_at_region(parameters: Mapping[str, Any]) -> bool:
    """True where a tensor's parameters say that it is in shared memory."""
    return REGION in parameters


def region_slice(
    parameters: Mapping[str, Any], what: str, needed_bytes: int, regions: Regions | None
) -> RegionSlice:
    """The memory that a tensor's parameters point at; `what` names the tensor in errors.

    Raises:
        Unsupported: client shared memory is off.
        NotFound: no region has that name.
        InvalidRequest: the parameters are of wrong types or reach beyond the region, or the tensor needs more bytes.
    """
    if regions is None:
        raise Unsupported(OFF)
    name = _parameter(parameters, REGION, "string_param", None)
    size = _parameter(parameters, BYTE_SIZE, "int64_param", None)
    start = _parameter(parameters, OFFSET, "int64_param", 0)
    region = regions.find(name)
    if size < 0 or start < 0 or start + size > region.byte_size:
        raise InvalidRequest(
            "size",
            f"offset {start} and byte size {size} of {what} are not within shared memory region "
            f"'{name}' of {region.byte_size} bytes",
        )
    if size < needed_bytes:
        raise InvalidRequest(
            "size",
            f"{what} needs {needed_bytes} bytes, {size} are given in shared memory region '{name}'",
        )
    return RegionSlice(region, start, size)


def _parameter(parameters: Mapping[str, Any], key: str, field: str, default: int | None) -> Any:
    parameter = parameters.get(key)
    if parameter is None and default is not None:
        return default
    if parameter is None or parameter.WhichOneof("parameter_choice") != field:
        raise InvalidRequest("mismatch", f"parameter '{key}' must be given as {field}")
    return getattr(parameter, field)
