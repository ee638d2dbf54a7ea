"""System shared memory: clients on the same host register a region once, and requests point into it."""

from collections.abc import Mapping

from gatefuse.errors import NotFound
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.shared_memory import Regions, Registration
from gatefuse.frontend.shared_memory.region import inspect
from gatefuse.protocol_words import not_registered
from gatefuse_protos import open_inference_pb2 as pb


class SystemSharedMemory:
    """SystemSharedMemoryStatus, SystemSharedMemoryRegister and SystemSharedMemoryUnregister."""

    extensions = ("system_shared_memory",)

    def __init__(self, regions: Regions) -> None:
        """Changes what is registered in `regions`, for every frontend."""
        self._regions = regions

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by name."""
        return {
            "SystemSharedMemoryStatus": unary(
                "SystemSharedMemoryStatus",
                pb.SystemSharedMemoryStatusRequest.FromString,
                self._status,
            ),
            "SystemSharedMemoryRegister": unary(
                "SystemSharedMemoryRegister",
                pb.SystemSharedMemoryRegisterRequest.FromString,
                self._register,
            ),
            "SystemSharedMemoryUnregister": unary(
                "SystemSharedMemoryUnregister",
                pb.SystemSharedMemoryUnregisterRequest.FromString,
                self._unregister,
            ),
        }

    async def _status(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        response = pb.SystemSharedMemoryStatusResponse()
        for found in listed(self._regions, request.name, on_gpu=False):
            region = response.regions[found.name]
            region.name, region.key = found.name, found.key
            region.offset, region.byte_size = found.offset, found.byte_size
        return response

    async def _register(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        identity = inspect(request.key, request.offset, request.byte_size)
        registration = Registration(
            name=request.name,
            key=request.key,
            offset=request.offset,
            byte_size=request.byte_size,
            identity=identity,
        )
        self._regions.add(registration)
        return pb.SystemSharedMemoryRegisterResponse()

    async def _unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        unregister(self._regions, request.name, on_gpu=False)
        return pb.SystemSharedMemoryUnregisterResponse()


def listed(regions: Regions, name: str, *, on_gpu: bool) -> list[Registration]:
    """The registrations of one kind of memory; only that of `name` where one is given.

    Raises:
        NotFound: there is none of that name.
    """
    registry = regions.registry
    if not name:
        return [found for found in registry.all() if found.on_gpu is on_gpu]
    found = registry.get(name)
    if found is None or found.on_gpu is not on_gpu:
        raise NotFound(not_registered(name))
    return [found]


def unregister(regions: Regions, name: str, *, on_gpu: bool) -> None:
    """Ends the registration of `name`, or all of one kind; one that is not there is no error, as in Triton."""
    registry = regions.registry
    names = [name] if name else [found.name for found in registry.all()]
    for each in names:
        found = registry.get(each)
        if found is not None and found.on_gpu is on_gpu:
            registry.remove(each)
    regions.sweep()
