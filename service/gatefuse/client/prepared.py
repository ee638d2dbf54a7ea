"""A request together with what it takes to read its answer, or to send it again, for both clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import SupportsIndex

from gatefuse.client.arrays import Arrays, DatatypeLike, unpacked
from gatefuse.client.memory import Lease
from gatefuse.client.messages import ParameterValue, Place, Result, Rows, infer_request, raw_result
from gatefuse.protocol_words import OUTPUTS_LEFT_OUT
from gatefuse_protos import open_inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class InferOptions:
    """What ``Client.infer`` takes beside the model and the rows."""

    outputs: Sequence[str] | None = None
    layer: SupportsIndex | None = None
    datatype: DatatypeLike | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """``message`` is ready to be sent; ``x`` is what it was made of, ``shape`` [M, columns] what travels.

    Where the rows are in memory that the server shares, the outputs have names: ``outputs`` are those, which are the
    caller's own only if ``options`` has them.
    """

    model: str
    x: Arrays
    options: InferOptions
    rows: Mapping[str, Rows]
    message: pb.ModelInferRequest
    shape: tuple[int, int]
    lease: Lease | None = None
    places: Mapping[str, Place] | None = None

    @property
    def is_unnamed(self) -> bool:
        """Whether the caller left the name of the only input to the client."""
        return not isinstance(self.x, Mapping) or "" in self.x

    @property
    def names_are_believed(self) -> bool:
        """Whether the message has names of inputs or outputs that are not the caller's own."""
        return self.is_unnamed or (self.lease is not None and not self.options.outputs)

    def read(self, response: pb.ModelInferResponse) -> Result:
        """Returns the answer as arrays like ``x``. Raises InferenceError if it breaks the protocol."""
        result = unpacked(raw_result(response, self.shape, self.places), self.x)
        if self.lease is not None:
            self.lease.give_back()
        return result

    def lacks_outputs(self, response: pb.ModelInferResponse) -> bool:
        """Whether the model has outputs that were not named, though its caller wants all."""
        return not self.options.outputs and OUTPUTS_LEFT_OUT in response.parameters

    def in_a_message(self, input_name: str | None = None) -> PreparedRequest:
        """Returns the same request without shared memory; its only input may get another name.

        The rows are those that were sent, whatever the caller has done to ``x`` since.
        """
        rows = {
            input_name or name: replace(each, content=each.packed())
            for name, each in self.rows.items()
        }
        return prepared(self.model, self.x, self.options, rows)

    def drop_memory(self) -> None:
        """The server may still be at the shared memory, unless the answer was read: it is not used again."""
        if self.lease is not None:
            self.lease.drop()


def prepared(
    model: str,
    x: Arrays,
    options: InferOptions,
    rows: Mapping[str, Rows],
    lease: Lease | None = None,
    outputs: Sequence[str] = (),
) -> PreparedRequest:
    """Returns the request that asks ``model`` for what ``options`` say of the named rows, which ``x`` was packed into.

    ``lease`` is of the memory that the rows are in, if it is shared; then ``outputs`` are the names of those to answer.
    """
    first = next(iter(rows.values()))
    places, named = None, options.outputs
    if lease is not None:
        places = lease.allocate_outputs(outputs, math.prod(first.shape) * first.datatype.itemsize)
        named = outputs
    message = infer_request(model, rows, options.layer, named, options.parameters, places)
    return PreparedRequest(model, x, options, rows, message, first.shape, lease, places)
