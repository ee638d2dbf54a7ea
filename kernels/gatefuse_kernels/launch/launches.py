"""Counts the kernels that some CUDA work really launches, from a captured graph's own node list.

A cuBLAS product may be one kernel or a kernel and its split-K reduction; the library chooses by
shape. Capturing the work without running it and listing the kernel nodes gives the exact number
with no profiler. Copies and memsets are other node types and are not kernel launches.

The capture goes through the driver and not through `torch.cuda.CUDAGraph`, which fills two tensors
of its random generator at each capture: two kernels that run, and that nobody counts.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import cache

import torch

_KERNEL_NODE = 0
_CHILD_GRAPH_NODE = 4
_CAPTURE_MODE_RELAXED = 2


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of the driver API."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared_bytes")),
        ("kernel_params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def captured_kernels(work: Callable[[], object]) -> tuple[str, ...]:
    """Names of the kernels `work` launches on the current stream; nothing is executed.

    `work` must have run once before, so that library handles exist and kernels are compiled.

    Raises:
        RuntimeError: the work cannot be captured, or the driver refuses to list the nodes.
    """
    stream = capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        return _capture(stream, work)


def capture_stream(device: int) -> torch.cuda.Stream:
    """The stream for all captures on a device: cuBLAS keeps a workspace for each it ever saw.

    Each thread has its own, because what others do on a stream would join its capture.
    """
    return _capture_stream(device, threading.get_ident())


@cache
def _capture_stream(device: int, thread: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _capture(stream: torch.cuda.Stream, work: Callable[[], object]) -> tuple[str, ...]:
    driver, handle = _driver(), ctypes.c_void_p(stream.cuda_stream)
    graph = ctypes.c_void_p()
    # Relaxed: the allocator does not know of this capture, and may have to ask for memory.
    _check(driver.cuStreamBeginCapture_v2(handle, ctypes.c_int(_CAPTURE_MODE_RELAXED)))
    try:
        work()
    finally:
        status = driver.cuStreamEndCapture(handle, ctypes.byref(graph))
    _check(status)
    try:
        return kernel_names(graph.value or 0)
    finally:
        driver.cuGraphDestroy(graph)


def kernel_names(graph: int) -> tuple[str, ...]:
    """Names of the kernel nodes of a raw `CUgraph` handle; an unknown name reads "?".

    Raises:
        RuntimeError: the driver refuses to list the nodes.
    """
    driver = _driver()
    count = ctypes.c_size_t(0)
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    names: list[str] = []
    for node in (node or 0 for node in nodes[: count.value]):
        kind = ctypes.c_int(-1)
        _check(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        if kind.value == _KERNEL_NODE:
            names.append(_kernel_name(driver, node))
        elif kind.value == _CHILD_GRAPH_NODE:
            child = ctypes.c_void_p()
            _check(driver.cuGraphChildGraphNodeGetGraph(ctypes.c_void_p(node), ctypes.byref(child)))
            names.extend(kernel_names(child.value or 0))
    return tuple(names)


def _kernel_name(driver: ctypes.CDLL, node: int) -> str:
    params = _KernelNodeParams()
    if driver.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(params)) != 0:
        return "?"
    name = ctypes.c_char_p()
    # A node holds either a function of a module or a context-free kernel of a library.
    if params.func:
        status = driver.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(params.func))
    else:
        status = driver.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(params.kern))
    return name.value.decode() if status == 0 and name.value else "?"


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"the CUDA driver answered {status} to a call about a graph")
