"""A request together with what it takes to read its answer, for both clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gatefuse.arrays import Arrays, unpacked
from gatefuse.client_memory import Lease
from gatefuse.messages import ParameterValue, Place, Result, Rows, infer_request, raw_result
from gatefuse_protos import open_inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Question:
    """``request`` is ready to be sent; ``x`` is what it was made of, ``shape`` [M, columns] what travels."""

    request: pb.ModelInferRequest
    x: Arrays
    shape: tuple[int, int]
    lease: Lease | None = None  # of the shared memory that its rows and its answers are in
    places: Mapping[str, Place] | None = None

    def read(self, response: pb.ModelInferResponse) -> Result:
        """Returns the answer as arrays like the question's. Raises InferenceError if it breaks the protocol."""
        result = unpacked(raw_result(response, self.shape, self.places), self.x)
        if self.lease is not None:
            self.lease.give_back()
        return result


def question(
    model: str,
    rows: Mapping[str, Rows],
    x: Arrays,
    *,
    layer: int | None,
    outputs: Sequence[str] | None,
    parameters: Mapping[str, ParameterValue],
    lease: Lease | None = None,
) -> Question:
    """Returns the question that asks ``model`` for ``outputs`` of the named rows, which ``x`` was packed into.

    ``lease`` is of the memory that the rows are in, if it is shared; then the outputs must be named.
    """
    first = next(iter(rows.values()))
    places = None
    if lease is not None:
        places = lease.answers(outputs or (), math.prod(first.shape) * first.datatype.itemsize)
    request = infer_request(model, rows, layer, outputs, parameters, places)
    return Question(request, x, first.shape, lease, places)
