"""Moves rows between requests and arena slots: one copy each way, converting where the datatypes differ."""

from functools import lru_cache
from typing import NamedTuple

from gatefuse.arena import tensor_stride
from gatefuse.batcher import Sealed, Work
from gatefuse.codec import MODEL_DATATYPES, InferRequest, Outputs
from gatefuse.request_inputs import Payload
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


def write_batch(sealed: Sealed, layout: BatchLayout, region: memoryview) -> None:
    """Writes the batch's rows into a slot's input region."""
    target, row_bytes, stride = layout
    first = 0
    for work in sealed.works:
        request: InferRequest = work.job.request
        start, size = first, work.rows * row_bytes
        for payload in request.payloads:
            rows = _piece(payload, request, work)
            if request.datatype is target:
                region[start : start + size] = rows
            else:
                convert(rows, request.datatype, target, out=region[start : start + size])
            start += stride
        first += size


def read_piece(work: Work, first_row: int, layout: BatchLayout, region: memoryview) -> Outputs:
    """Copies the outputs that a work's request asks for out of a slot's output region, in the request's datatype."""
    source, row_bytes, stride = layout
    request: InferRequest = work.job.request
    first, size = first_row * row_bytes, work.rows * row_bytes
    pieces = []
    for number in request.outputs:
        start = first + number * stride
        rows = region[start : start + size]
        if request.datatype is source:
            pieces.append(bytes(rows))
        else:
            pieces.append(convert(rows, source, request.datatype).tobytes())
    return tuple(pieces)


def _piece(payload: Payload, request: InferRequest, work: Work) -> Payload:
    if work.rows == request.rows:
        return payload
    request_row_bytes = request.columns * request.datatype.itemsize
    first = work.offset_rows * request_row_bytes
    return memoryview(payload)[first : first + work.rows * request_row_bytes]
