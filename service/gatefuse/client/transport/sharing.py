"""Shared memory chosen by itself: where the server is on this host and allows it, large rows go through regions."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from gatefuse.client.memory import FROM_BYTES, Lease, Region, RegionPool, SharedMemory, region_bytes
from gatefuse.client.messages import InferenceError
from gatefuse.client.transport.rpcs import REGISTER_MEMORY, UNREGISTER_MEMORY, Call, Steps
from gatefuse_protos import open_inference_pb2 as pb

# What registering tells of a server that takes no region: it is off, the server is on another host, or it has too many.
_REFUSALS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
REST_S = 30.0
UNREGISTER_S = 1.0
# A request that needs a new region tells the server of no more than so many that are gone: it has a deadline.
_FEW_NAMES = 8


class Sharing:
    """Whether a request goes through shared memory, and the regions there are."""

    def __init__(
        self, mode: SharedMemory, endpoints: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises ValueError for a mode that cannot be."""
        if mode not in ("auto", "on", "off"):
            raise ValueError(f"shared_memory must be 'auto', 'on' or 'off', not {mode!r}")
        if mode == "on" and endpoints > 1:
            raise ValueError("shared memory is for one endpoint: each server knows its own regions")
        self._clock = clock
        self._required = mode == "on"
        self._possible = mode != "off" and endpoints == 1
        self._rests_until_s = float("-inf")
        self._pool = RegionPool()

    @property
    def has_dropped(self) -> bool:
        """Whether the server may still have regions registered that nobody uses."""
        return self._pool.has_dropped

    def is_worthwhile(self, inputs_bytes: int) -> bool:
        """True for a request of so many bytes that is to go through memory."""
        if not self._possible:
            return False
        return self._required or (
            inputs_bytes >= FROM_BYTES and self._clock() >= self._rests_until_s
        )

    def lease(self, tensor_bytes: int, tensors: int) -> Steps[Lease | None]:
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
        # In the pool before the server is told: whatever becomes of the call, it is unregistered some time.
        lease = self._pool.add(region)
        try:
            yield from self.unregister(_FEW_NAMES)
            # Where a message does as well, a server that cannot register it now is not worth a wait.
            yield Call(REGISTER_MEMORY, region.registration(), retry=self._required)
        except InferenceError as error:
            lease.drop()
            self._take_refusal(region, error)
            return None
        except BaseException:
            lease.drop()
            raise
        return lease

    def allows_message(self, error: InferenceError) -> bool:
        """Whether rows that a server refused to take from memory may go in the message: it shares none any more."""
        if self._required or error.code is not grpc.StatusCode.UNIMPLEMENTED:
            return False
        self._rest()
        return True

    def unregister(self, at_most: int | None = None) -> Steps[None]:
        """Tells the server of the regions that were dropped, or so many of them, as far as it answers."""
        # Taken out first: requests beside this one need not tell of the same.
        names = self._pool.take_dropped(at_most)
        try:
            while names:
                request = pb.SystemSharedMemoryUnregisterRequest(name=names[-1])
                try:
                    yield Call(UNREGISTER_MEMORY, request, UNREGISTER_S, retry=False)
                except InferenceError as error:
                    if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                        return
                names.pop()
        finally:
            self._pool.put_back(names)

    def close(self) -> None:
        """Drops all regions."""
        self._pool.close()

    def _make(self, size_bytes: int) -> Region | None:
        self._pool.make_room()
        if self._pool.full and not self._required:
            return None
        try:
            return Region(size_bytes)
        except OSError:
            # No such memory here, or no room for so much.
            if self._required:
                raise
            self._rest()
            return None

    def _take_refusal(self, region: Region, error: InferenceError) -> None:
        if error.code in _REFUSALS:
            self._pool.forget(region.name)
            self._rest()
        if self._required:
            raise error

    def _rest(self) -> None:
        self._rests_until_s = self._clock() + REST_S
