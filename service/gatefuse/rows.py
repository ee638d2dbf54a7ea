"""Moves rows between requests and arena slots: one copy each way, converting where the datatypes differ."""

from gatefuse.batcher import Sealed, Work
from gatefuse.codec import MODEL_DATATYPES, InferRequest
from gatefuse.link import ServedModel
from gatefuse.wire import convert


def row_bytes(model: ServedModel, columns: int) -> int:
    """Bytes of a row of `columns` elements in the model's dtype."""
    return columns * MODEL_DATATYPES[model.dtype].itemsize


def write_batch(sealed: Sealed, model: ServedModel, region: memoryview) -> None:
    """Writes the batch's rows one after the other into a slot's input region."""
    target = MODEL_DATATYPES[model.dtype]
    slot_row_bytes = row_bytes(model, sealed.key.columns)
    start = 0
    for work in sealed.works:
        request: InferRequest = work.job.request
        rows = _piece(request, work)
        end = start + work.rows * slot_row_bytes
        if request.datatype is target:
            region[start:end] = rows
        else:
            convert(rows, request.datatype, target, out=region[start:end])
        start = end


def read_piece(rows: memoryview, model: ServedModel, request: InferRequest) -> bytes:
    """Copies one work's answers out of a slot's output region, in the request's datatype."""
    source = MODEL_DATATYPES[model.dtype]
    if request.datatype is source:
        return bytes(rows)
    return convert(rows, source, request.datatype).tobytes()


def _piece(request: InferRequest, work: Work) -> memoryview | bytes:
    if work.rows == request.rows:
        return request.payload
    request_row_bytes = request.columns * request.datatype.itemsize
    first = work.offset_rows * request_row_bytes
    return memoryview(request.payload)[first : first + work.rows * request_row_bytes]
