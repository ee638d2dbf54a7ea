"""Clients' memory that a GPU reads and writes in place: files, and memory of the GPU itself."""

from __future__ import annotations

import base64
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import tritonclient.grpc
from tests.integration.harness import Service, Start, wait_until
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 300, 4096
BYTES = ROWS * COLUMNS * 4


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    gate = {
        "name": "gate",
        "kind": "elementwise",
        "expression": "y = max(a, b) - b; z = a - 2 * b",
        "dtype": "fp32",
        "columns": COLUMNS,
        "batching": {"max_batch_rows": 128},  # a request is three batches
    }
    return start({"device": "cuda", "allow_client_shm": True, "models": [gate]})


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as made:
        yield made
        made.unregister_system_shared_memory()
        made.unregister_cuda_shared_memory()


def _tensors(region: str, offset: int = 0) -> tuple[list[Any], list[Any]]:
    """Inputs a and b, then outputs y and z, one after the other."""
    inputs = [tritonclient.grpc.InferInput(name, [ROWS, COLUMNS], "FP32") for name in "ab"]
    outputs = [tritonclient.grpc.InferRequestedOutput(name) for name in "yz"]
    for number, tensor in enumerate([*inputs, *outputs]):
        tensor.set_shared_memory(region, BYTES, offset=offset + number * BYTES)
    return inputs, outputs


def _pair(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    a, b = np.random.default_rng(seed).standard_normal((2, ROWS, COLUMNS)).astype(np.float32)
    return a, b


def test_files_are_read_and_written_in_place(service: Service, client: Client) -> None:
    key = f"/gatefuse-gpu-{os.getpid()}"
    handle = shm.create_shared_memory_region("rows", key, 4 * BYTES, create_only=True)
    try:
        client.register_system_shared_memory("rows", key, 4 * BYTES)
        inputs, outputs = _tensors("rows")
        for seed in range(5):
            a, b = _pair(seed)
            shm.set_shared_memory_region(handle, [a, b, np.zeros_like(a), np.zeros_like(a)])
            client.infer("gate", inputs, outputs=outputs)
            y, z = shm.get_contents_as_numpy(handle, np.float32, (2, ROWS, COLUMNS), 2 * BYTES)
            np.testing.assert_array_equal(y, np.maximum(a, b) - b)
            np.testing.assert_array_equal(z, a - 2 * b)
        (worker,) = service.worker_pids()

        def mapped() -> bool:
            return any(key in part.path for part in psutil.Process(worker).memory_maps())

        assert mapped(), "the worker's own mapping"
        client.unregister_system_shared_memory("rows")
        wait_until(lambda: not mapped(), 5, "the worker lets the memory go")
    finally:
        shm.destroy_shared_memory_region(handle)


def test_a_file_that_shrinks_takes_nothing_down(service: Service, client: Client) -> None:
    key = f"/gatefuse-gpu-{os.getpid()}"
    handle = shm.create_shared_memory_region("rows", key, 4 * BYTES, create_only=True)
    alive = service.worker_pids()
    try:
        client.register_system_shared_memory("rows", key, 4 * BYTES)
        inputs, outputs = _tensors("rows")
        client.infer("gate", inputs, outputs=outputs)
        os.truncate(Path("/dev/shm") / key[1:], BYTES)
        statuses = set()
        for _ in range(5):
            try:
                client.infer("gate", inputs, outputs=outputs)
            except InferenceServerException as error:
                statuses.add(error.status())
        assert statuses <= {"StatusCode.INVALID_ARGUMENT"}
        assert service.worker_pids() == alive
        os.truncate(Path("/dev/shm") / key[1:], 4 * BYTES)
    finally:
        shm.destroy_shared_memory_region(handle)


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


def _handle_of(tensor: torch.Tensor) -> tuple[bytes, int, int]:
    """The CUDA IPC handle of the allocation that a tensor lies in, the tensor's place in it, and its size."""
    driver = ctypes.CDLL("libcuda.so.1")
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    pointer = ctypes.c_uint64(tensor.data_ptr())
    assert driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer) == 0
    assert driver.cuIpcGetMemHandle(ctypes.byref(handle), base) == 0
    return bytes(handle), tensor.data_ptr() - base.value, size.value


def _register(client: Client, handle: bytes, size: int) -> None:
    client.register_cuda_shared_memory("gpu", base64.b64encode(handle), 0, size)


def test_rows_stay_on_the_gpu(client: Client) -> None:
    assert "cuda_shared_memory" in client.get_server_metadata().extensions
    memory = torch.zeros((4, ROWS, COLUMNS), device="cuda")
    handle, offset, size = _handle_of(memory)
    _register(client, handle, size)
    status = client.get_cuda_shared_memory_status("gpu").regions["gpu"]
    assert (status.device_id, status.byte_size) == (0, size)
    inputs, outputs = _tensors("gpu", offset)
    for seed in range(5):
        a, b = _pair(seed)
        memory[0].copy_(torch.from_numpy(a))
        memory[1].copy_(torch.from_numpy(b))
        torch.cuda.synchronize()
        client.infer("gate", inputs, outputs=outputs)
        np.testing.assert_array_equal(memory[2].cpu().numpy(), np.maximum(a, b) - b)
        np.testing.assert_array_equal(memory[3].cpu().numpy(), a - 2 * b)
    client.unregister_cuda_shared_memory("gpu")
    with pytest.raises(InferenceServerException) as unknown:
        client.infer("gate", inputs, outputs=outputs)
    assert unknown.value.status() == "StatusCode.NOT_FOUND"


def test_handles_that_lead_nowhere(service: Service, client: Client) -> None:
    handle, _, size = _handle_of(torch.zeros(1 << 22, device="cuda"))
    alive = service.worker_pids()
    for wrong, byte_size in ((bytes(64), size), (handle[:63], size), (handle, size + 1)):
        with pytest.raises(InferenceServerException) as refused:
            _register(client, wrong, byte_size)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    _register(client, handle, size)
    with pytest.raises(InferenceServerException) as twice:
        _register(client, handle, size)
    assert twice.value.status() == "StatusCode.ALREADY_EXISTS"
    assert service.worker_pids() == alive


def test_tritonclients_own_utilities(client: Client) -> None:
    pytest.importorskip("cuda.bindings.runtime")
    from tritonclient.utils import cuda_shared_memory as cuda_shm

    handle = cuda_shm.create_shared_memory_region("gpu", 4 * BYTES, 0)
    try:
        raw = cuda_shm.get_raw_handle(handle)
        client.register_cuda_shared_memory("gpu", raw, 0, 4 * BYTES)
        a, b = _pair(7)
        cuda_shm.set_shared_memory_region(handle, [a, b])
        inputs, outputs = _tensors("gpu")
        client.infer("gate", inputs, outputs=outputs)
        found = cuda_shm.get_contents_as_numpy(handle, np.float32, [4, ROWS, COLUMNS])
        np.testing.assert_array_equal(found[3], a - 2 * b)
        client.unregister_cuda_shared_memory("gpu")
    finally:
        cuda_shm.destroy_shared_memory_region(handle)
