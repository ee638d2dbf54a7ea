"""Methods that are off say so, and how to get them."""

from __future__ import annotations

import contextlib

import grpc
import pytest
from tests.service.bed import METHODS, TestBed, refused

OFF = {
    "SystemSharedMemoryStatus": "--allow-client-shm",
    "SystemSharedMemoryRegister": "--allow-client-shm",
    "SystemSharedMemoryUnregister": "--allow-client-shm",
    "CudaSharedMemoryStatus": "--allow-client-shm",
    "CudaSharedMemoryRegister": "--allow-client-shm",
    "CudaSharedMemoryUnregister": "--allow-client-shm",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", OFF)
async def test_what_is_off_is_unimplemented_with_a_reason(bed: TestBed, name: str) -> None:
    code, text = await refused(bed.call(name))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert OFF[name] in text


@pytest.mark.asyncio
@pytest.mark.parametrize("name", sorted(METHODS))
async def test_every_method_of_the_protocol_answers_in_words(bed: TestBed, name: str) -> None:
    bed.worker()
    with contextlib.suppress(grpc.aio.AioRpcError):
        await bed.call(name)
        return
    code, text = await refused(bed.call(name))
    assert text
    assert "Method not found" not in text
    assert code in {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
