"""Rows of a batch that lie in clients' memory: copied to and from the slot, or left to the device."""

from collections.abc import Iterator, Sequence

from gatefuse.batching.batcher import Work
from gatefuse.errors import InvalidRequest, ServiceError
from gatefuse.frontend.requests.codec import InferRequest
from gatefuse.frontend.shared_memory import CudaRegion, RegionSlice
from gatefuse.frontend.shared_memory.lent_memory import Lender
from gatefuse.link.memory import Move
from gatefuse.wire import Datatype, convert

# Copying so much costs less than telling the worker where it is.
DIRECT_FROM_BYTES = 32 * 1024


def bring(
    rows: RegionSlice, work: Work, target: Datatype, place: memoryview, lender: Lender
) -> tuple[int, int] | None:
    """Copies rows from a client's region into `place`, or returns where the device finds them: memory and byte.

    Where the region cannot be read the request fails, and its batch leaves with other rows.
    """
    request: InferRequest = work.job.request
    try:
        memory = _direct(rows, request.datatype is target, lender)
        if memory is not None:
            return memory, rows.start
        if request.datatype is target:
            rows.read_into(place)
        else:
            # Read once: the client may change it at any time.
            own = memoryview(bytearray(len(rows)))
            rows.read_into(own)
            convert(own, request.datatype, target, out=place)
    except ServiceError as error:
        work.job.fail(error)
    return None


def direct_outputs(
    work: Work, source: Datatype, offsets: Sequence[int], lender: Lender
) -> Iterator[Move]:
    """What the device moves of a work's outputs; `offsets` are where each lies in the batch's tensors."""
    request: InferRequest = work.job.request
    for target, offset in zip(request.targets, offsets, strict=True):
        if target is None:
            continue
        part = _part(target, work)
        try:
            memory = _direct(part, request.datatype is source, lender)
        except ServiceError as error:
            work.job.fail(error)
            return
        if memory is not None:
            yield Move(False, memory, part.start, offset, part.size)


def deliver(rows: memoryview, work: Work, source: Datatype, target: RegionSlice) -> None:
    """Writes a work's rows of one output to its client's region.

    Raises:
        InvalidRequest: the region cannot be written to any more.
    """
    request: InferRequest = work.job.request
    if request.datatype is not source:
        rows = convert(rows, source, request.datatype).data
    _part(target, work).write(rows)


def _part(target: RegionSlice, work: Work) -> RegionSlice:
    """Where the rows of this work go, of a request that may be in pieces."""
    request: InferRequest = work.job.request
    row_bytes = request.columns * request.datatype.itemsize
    return target.part(work.offset_rows * row_bytes, work.rows * row_bytes)


def _direct(part: RegionSlice, same_datatype: bool, lender: Lender) -> int | None:
    """The number under which the device moves these rows itself; None where they are to be copied."""
    on_gpu = isinstance(part.region, CudaRegion)
    if on_gpu and not same_datatype:
        raise InvalidRequest(
            "dtype", "rows in CUDA shared memory must be of the model's own datatype"
        )
    if not same_datatype or (part.size < DIRECT_FROM_BYTES and not on_gpu):
        return None
    number = lender.number(part.region)
    if on_gpu and number is None:
        raise InvalidRequest(
            "mismatch", f"CUDA shared memory region '{part.region.name}' cannot be used any more"
        )
    return number
