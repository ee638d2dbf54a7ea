"""What rows in a GPU's own memory add to the kernel: 32 MiB a request, read and written on the device.

The service runs an elementwise identity with one frontend and one worker. One client asks again and again, two ways
that take turns:

- region: the rows lie in CUDA memory of this process, registered by its IPC handle, and the answer is written there;
- row: one row in the message, which is what a call through gRPC costs whatever it carries.

A call's overhead is its time less the device time that the answer names. What CUDA shared memory adds is the overhead
of `region` less that of `row`, in the same round. The medians count.

    python -m benchmarks.cuda_shared_memory

Exits 1 if an answer was wrong or more than 150 microseconds were added.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from benchmarks.shared_memory import COLUMNS, MIB, TIMEOUT_S, service

from gatefuse.client.messages import method
from gatefuse.client.transport import rpcs
from gatefuse.client.transport.blocking import Transport
from gatefuse.client.transport.retry import NO_RETRY
from gatefuse.commands.loadtest.facts import run_facts
from gatefuse_protos import open_inference_pb2 as pb

MAX_ADDED_US = 150.0
REGION = "rows"
REGISTER = rpcs.Rpc(
    method("CudaSharedMemoryRegister"), pb.CudaSharedMemoryRegisterResponse.FromString
)
UNREGISTER = rpcs.Rpc(
    method("CudaSharedMemoryUnregister"), pb.CudaSharedMemoryUnregisterResponse.FromString
)
Ask = Callable[[], pb.ModelInferResponse]


@dataclass(frozen=True, slots=True)
class Figure:
    """One way in one round: medians in microseconds."""

    way: str
    round: int
    call_us: float
    device_us: float
    overhead_us: float


def ipc_handle(tensor: torch.Tensor) -> tuple[bytes, int, int]:
    """The IPC handle of the allocation that a tensor lies in, its offset there, and its storage's bytes."""
    # torch hands out the handle with a byte that tells its kind before it.
    _, handle, size, offset, *_ = tensor.untyped_storage()._share_cuda_()
    return handle[-64:], offset, size


def _tensor(message: pb.ModelInferRequest, rows: int) -> pb.ModelInferRequest.InferInputTensor:
    return message.inputs.add(name="x", datatype="FP32", shape=[rows, COLUMNS])


def _point(parameters: Mapping[str, pb.InferParameter], offset: int, size: int) -> None:
    parameters["shared_memory_region"].string_param = REGION
    parameters["shared_memory_offset"].int64_param = offset
    parameters["shared_memory_byte_size"].int64_param = size


@contextmanager
def region_asker(transport: Transport, x: torch.Tensor, answer: torch.Tensor) -> Iterator[Ask]:
    """Rows of a device tensor; the answer goes to another part of the same allocation."""
    handle, offset, size = ipc_handle(x)
    transport.call(
        REGISTER,
        pb.CudaSharedMemoryRegisterRequest(
            name=REGION, raw_handle=handle, device_id=0, byte_size=offset + size
        ),
    )
    request = pb.ModelInferRequest(model_name="identity")
    _point(_tensor(request, len(x)).parameters, offset, x.nbytes)
    target = offset + answer.data_ptr() - x.data_ptr()
    _point(request.outputs.add(name="y").parameters, target, answer.nbytes)
    try:
        yield lambda: transport.call(rpcs.MODEL_INFER, request)
    finally:
        transport.call(UNREGISTER, pb.CudaSharedMemoryUnregisterRequest(name=REGION))


def row_asker(transport: Transport) -> Ask:
    """One row in a message."""
    request = pb.ModelInferRequest(model_name="identity")
    _tensor(request, 1)
    request.raw_input_contents.append(bytes(COLUMNS * 4))
    return lambda: transport.call(rpcs.MODEL_INFER, request)


def measure(way: str, number: int, ask: Ask, requests: int) -> Figure:
    """Medians over a round's requests."""
    calls, devices = [], []
    for _ in range(requests):
        begun_s = time.perf_counter()
        response = ask()
        calls.append((time.perf_counter() - begun_s) * 1e6)
        devices.append(float(response.parameters["compute_us"].int64_param))
    overheads = [call - device for call, device in zip(calls, devices, strict=True)]
    return Figure(way, number, median(calls), median(devices), median(overheads))


def run(options: argparse.Namespace) -> tuple[list[Figure], bool]:
    """All rounds, and whether every answer looked at was right."""
    rows = options.mib * MIB // (COLUMNS * 4)
    memory = torch.randn((2, rows, COLUMNS), device="cuda")
    x, answer = memory
    right = True
    figures = []
    with ExitStack() as stack:
        url = stack.enter_context(service("cuda", rows))
        transport = Transport(url, None, TIMEOUT_S, NO_RETRY)
        stack.callback(transport.close)
        askers = {
            "region": stack.enter_context(region_asker(transport, x, answer)),
            "row": row_asker(transport),
        }
        for way, ask in askers.items():
            measure(way, 0, ask, options.requests)
        for number in range(options.rounds):
            answer.fill_(torch.nan)
            torch.cuda.synchronize()
            for way, ask in askers.items():
                figures.append(measure(way, number, ask, options.requests))
            right = right and torch.equal(answer, x)
    return figures, right


def summary(figures: Sequence[Figure]) -> dict[str, float]:
    """Medians over the rounds, in microseconds."""
    row = {figure.round: figure for figure in figures if figure.way == "row"}
    region = [figure for figure in figures if figure.way == "region"]
    return {
        "region_call_us": median(figure.call_us for figure in region),
        "region_device_us": median(figure.device_us for figure in region),
        "region_overhead_us": median(figure.overhead_us for figure in region),
        "row_overhead_us": median(figure.overhead_us for figure in row.values()),
        "added_us": median(each.overhead_us - row[each.round].overhead_us for each in region),
    }


def main() -> int:
    """Measures, prints, keeps the result; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=32, help="of a request (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=200, help="a round and way")
    parser.add_argument("--output", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()
    figures, right = run(options)
    found = summary(figures)
    for key, value in found.items():
        print(f"{key:20} {value:8.1f}")
    if options.output:
        result = {
            "facts": run_facts(shlex.join(sys.argv)),
            "summary": found,
            "figures": [asdict(figure) for figure in figures],
        }
        options.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if not right:
        print("answers were wrong")
    return 0 if right and found["added_us"] <= MAX_ADDED_US else 1


if __name__ == "__main__":
    sys.exit(main())
