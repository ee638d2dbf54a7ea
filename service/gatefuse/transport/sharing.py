"""Shared memory chosen by itself: where the server is on this host and allows it, large rows go through regions."""

from __future__ import annotations

import grpc

from gatefuse.client_memory import FROM_BYTES, Lease, Region, RegionPool, SharedMemory, region_bytes
from gatefuse.messages import InferenceError
from gatefuse.transport import rpcs
from gatefuse.transport.asynchronous import AioTransport
from gatefuse.transport.blocking import Transport

# What registering tells of a server that will never take a region: it is off, or the server is on another host.
_NEVER = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
_UNREGISTER_S = 1.0


class _Choice:
    """Whether a request goes through shared memory, and the regions there are."""

    def __init__(self, mode: SharedMemory, endpoints: int) -> None:
        if mode not in ("auto", "on", "off"):
            raise ValueError(f"shared_memory must be 'auto', 'on' or 'off', not {mode!r}")
        if mode == "on" and endpoints > 1:
            raise ValueError("shared memory is for one endpoint: each server knows its own regions")
        self._required = mode == "on"
        self._usable = mode != "off" and endpoints == 1
        self._pool = RegionPool()

    def wants(self, inputs_bytes: int) -> bool:
        """True for a request whose inputs are worth it."""
        return self._usable and (self._required or inputs_bytes >= FROM_BYTES)

    def forget(self) -> None:
        """The server knows none of the regions any more: it was started again."""
        self._pool.forget()

    def _make(self, size_bytes: int) -> Region | None:
        self._pool.make_room()
        if self._pool.full:
            return None
        try:
            return Region(size_bytes)
        except OSError:
            # No such memory here, or no room for so much.
            if self._required:
                raise
            self._usable = False
            return None

    def _refused(self, region: Region, error: InferenceError) -> None:
        region.unlink()
        if self._required:
            raise error
        if error.code in _NEVER:
            self._usable = False


class Sharing(_Choice):
    """The blocking client's."""

    def __init__(self, transport: Transport, mode: SharedMemory) -> None:
        """Registers regions through `transport`. Raises ValueError for a mode that cannot be."""
        super().__init__(mode, transport.endpoints)
        self._transport = transport

    def lease(self, tensor_bytes: int, tensors: int) -> Lease | None:
        """Memory for so many tensors of a request; None where its rows should travel in the message.

        Raises:
            InferenceError: The mode is ``on`` and the server takes no region.
            OSError: The mode is ``on`` and there is no room.
        """
        size_bytes = region_bytes(tensor_bytes, tensors)
        if (lease := self._pool.take(size_bytes)) is not None:
            return lease
        if (region := self._make(size_bytes)) is None:
            return None
        self._unregister()
        try:
            self._transport.call(rpcs.REGISTER_MEMORY, region.registration())
        except InferenceError as error:
            self._refused(region, error)
            return None
        return self._pool.add(region)

    def close(self) -> None:
        """Removes all regions, and tells the server if it is there."""
        self._pool.close()
        self._unregister()

    def _unregister(self) -> None:
        for request in self._pool.unregistrations():
            try:
                self._transport.call(rpcs.UNREGISTER_MEMORY, request, _UNREGISTER_S, retry=False)
            except InferenceError:
                return


class AioSharing(_Choice):
    """The asyncio client's."""

    def __init__(self, transport: AioTransport, mode: SharedMemory) -> None:
        """See ``Sharing``."""
        super().__init__(mode, transport.endpoints)
        self._transport = transport

    async def lease(self, tensor_bytes: int, tensors: int) -> Lease | None:
        """See ``Sharing.lease``."""
        size_bytes = region_bytes(tensor_bytes, tensors)
        if (lease := self._pool.take(size_bytes)) is not None:
            return lease
        if (region := self._make(size_bytes)) is None:
            return None
        await self._unregister()
        try:
            await self._transport.call(rpcs.REGISTER_MEMORY, region.registration())
        except InferenceError as error:
            self._refused(region, error)
            return None
        return self._pool.add(region)

    async def close(self) -> None:
        """See ``Sharing.close``."""
        self._pool.close()
        await self._unregister()

    async def _unregister(self) -> None:
        for request in self._pool.unregistrations():
            try:
                await self._transport.call(
                    rpcs.UNREGISTER_MEMORY, request, _UNREGISTER_S, retry=False
                )
            except InferenceError:
                return
