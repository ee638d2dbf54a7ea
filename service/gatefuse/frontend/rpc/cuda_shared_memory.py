"""CUDA shared memory: clients register a GPU's memory, whose rows never leave the GPU."""

import asyncio
from collections.abc import Mapping

from gatefuse.errors import InvalidRequest, Unsupported
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.rpc.call import Context, Handler, unary
from gatefuse.frontend.rpc.shared_memory import listed, unregister
from gatefuse.frontend.shared_memory import Regions, Registration
from gatefuse.frontend.shared_memory.cuda import check_handle
from gatefuse.frontend.shared_memory.lent_memory import LentMemory
from gatefuse_protos import open_inference_pb2 as pb

OPEN_TIMEOUT_S = 10.0


class CudaSharedMemory:
    """CudaSharedMemoryStatus, CudaSharedMemoryRegister and CudaSharedMemoryUnregister."""

    def __init__(self, regions: Regions, dispatcher: Dispatcher) -> None:
        """Changes what is registered in `regions`, once the worker of `dispatcher` has opened it."""
        self._regions = regions
        self._dispatcher = dispatcher

    @property
    def extensions(self) -> tuple[str, ...]:
        """None where there is no GPU."""
        return ("cuda_shared_memory",) if self._lenders() else ()

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by name."""
        return {
            "CudaSharedMemoryStatus": unary(
                "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest.FromString, self._status
            ),
            "CudaSharedMemoryRegister": unary(
                "CudaSharedMemoryRegister",
                pb.CudaSharedMemoryRegisterRequest.FromString,
                self._register,
            ),
            "CudaSharedMemoryUnregister": unary(
                "CudaSharedMemoryUnregister",
                pb.CudaSharedMemoryUnregisterRequest.FromString,
                self._unregister,
            ),
        }

    async def _status(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        response = pb.CudaSharedMemoryStatusResponse()
        for found in listed(self._regions, request.name, on_gpu=True):
            region = response.regions[found.name]
            region.name = found.name
            region.device_id, region.byte_size = found.device_id, found.byte_size
        return response

    async def _register(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        lender = self._only_lender()
        check_handle(request.raw_handle, request.device_id, request.byte_size)
        registration = Registration(
            name=request.name,
            byte_size=request.byte_size,
            device_id=request.device_id,
            handle=request.raw_handle,
        )
        self._regions.registry.add(registration)
        if not await self._opens(lender, request.name):
            unregister(self._regions, request.name, on_gpu=True)
            raise InvalidRequest(
                "mismatch",
                f"raw_handle is of no memory of byte_size {request.byte_size} on this server's GPU",
            )
        return pb.CudaSharedMemoryRegisterResponse()

    async def _unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        unregister(self._regions, request.name, on_gpu=True)
        return pb.CudaSharedMemoryUnregisterResponse()

    def _lenders(self) -> list[LentMemory]:
        return [found for found in self._dispatcher.lenders if isinstance(found, LentMemory)]

    def _only_lender(self) -> LentMemory:
        lenders = self._lenders()
        if not lenders:
            raise Unsupported("no worker of this server has a GPU")
        if len(lenders) > 1:
            # A batch goes to any worker, and a handle can be opened on its own GPU only.
            raise Unsupported("CUDA shared memory needs a service of one worker")
        return lenders[0]

    async def _opens(self, lender: LentMemory, name: str) -> bool:
        """Whether the worker can use the region."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def tell(usable: bool) -> None:
            if not told.done():
                told.set_result(usable)

        lender.when_open(self._regions.find(name), tell)
        try:
            return await asyncio.wait_for(told, OPEN_TIMEOUT_S)
        except TimeoutError:
            return False
