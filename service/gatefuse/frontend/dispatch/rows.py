"""Moves rows between requests and arena slots: one copy each way, converting where the datatypes differ."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gatefuse.batching.batcher import Sealed, Work
from gatefuse.frontend.dispatch.client_rows import bring, deliver, direct_outputs
from gatefuse.frontend.requests.codec import MODEL_DATATYPES, InferRequest, Outputs
from gatefuse.frontend.requests.inputs import Payload
from gatefuse.frontend.shared_memory import RegionSlice
from gatefuse.frontend.shared_memory.lent_memory import NOTHING, Lender
from gatefuse.link.arena import tensor_stride
from gatefuse.link.memory import Move
from gatefuse.wire import Datatype, convert


class BatchLayout(NamedTuple):
    """Where a batch's rows lie in either region of a slot: tensor after tensor, the works' rows in their order."""

    datatype: Datatype
    row_bytes: int
    stride: int


# The same few sizes come again and again.
@lru_cache(maxsize=8192)
def batch_layout(dtype: str, rows: int, columns: int) -> BatchLayout:
    """The layout of a batch of [rows, columns] tensors in a model's dtype."""
    datatype = MODEL_DATATYPES[dtype]
    row_bytes = columns * datatype.itemsize
    return BatchLayout(datatype, row_bytes, tensor_stride(rows, row_bytes))


def write_batch(
    sealed: Sealed, layout: BatchLayout, region: memoryview, lender: Lender = NOTHING
) -> None:
    """Writes the batch's rows into a slot's input region, save those that the device moves by itself."""
    moves: list[Move] = []
    target, row_bytes, stride = layout
    first = 0
    for work in sealed.works:
        request: InferRequest = work.job.request
        start, size = first, work.rows * row_bytes
        for payload in request.payloads:
            rows = _piece(payload, request, work)
            place = region[start : start + size]
            if isinstance(rows, RegionSlice):
                direct = bring(rows, work, target, place, lender)
                if direct is not None:
                    moves.append(Move(True, *direct, start, size))
            elif request.datatype is target:
                place[:] = rows
            else:
                convert(rows, request.datatype, target, out=place)
            start += stride
        if request.targets:
            offsets = [first + number * stride for number in request.outputs]
            moves += direct_outputs(work, target, offsets, lender)
        first += size
    if moves:
        sealed.moves = tuple(moves)


def read_piece(
    work: Work,
    first_row: int,
    layout: BatchLayout,
    region: memoryview,
    moves: Sequence[Move] = (),
) -> Outputs:
    """Copies the outputs that a work's request asks for out of a slot's output region, in the request's datatype.

    Outputs that go to a client's region are written there, if the batch's `moves` have not, and are empty here.

    Raises:
        InvalidRequest: a region cannot be written to any more.
    """
    source, row_bytes, stride = layout
    request: InferRequest = work.job.request
    first, size = first_row * row_bytes, work.rows * row_bytes
    pieces: list[bytes] = []
    for number in request.outputs:
        start = first + number * stride
        rows = region[start : start + size]
        if request.targets and (there := request.targets[len(pieces)]) is not None:
            if not any(move.offset == start and not move.to_device for move in moves):
                deliver(rows, work, source, there)
            pieces.append(b"")
        elif request.datatype is source:
            pieces.append(bytes(rows))
        else:
            pieces.append(convert(rows, source, request.datatype).tobytes())
    return tuple(pieces)


def _piece(payload: Payload, request: InferRequest, work: Work) -> Payload:
    if work.rows == request.rows:
        return payload
    request_row_bytes = request.columns * request.datatype.itemsize
    first = work.offset_rows * request_row_bytes
    size = work.rows * request_row_bytes
    if isinstance(payload, RegionSlice):
        return payload.part(first, size)
    return memoryview(payload)[first : first + size]
