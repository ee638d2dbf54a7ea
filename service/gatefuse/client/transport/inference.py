"""From a caller's arrays to the answer: what is asked of the server, and what follows from what it says.

One description for threads, asyncio, single calls and streams: see ``Steps``.
"""

from __future__ import annotations

import grpc

from gatefuse.client.arrays import Arrays, described
from gatefuse.client.messages import InferenceError, Result, Rows
from gatefuse.client.metadata import ModelMetadata, model_metadata, single_input
from gatefuse.client.prepared import InferOptions, PreparedRequest, prepared
from gatefuse.client.transport.rpcs import MODEL_INFER, MODEL_METADATA, Call, Steps
from gatefuse.client.transport.sharing import Sharing
from gatefuse.protocol_words import not_registered
from gatefuse_protos import open_inference_pb2 as pb


class Inference:
    """Makes requests and reads answers; knows what the models are called that it has asked for.

    A request is sent a second time, once, where the first was refused for what this client believed of the server: its
    rows' memory is lost, or the model has other inputs or outputs than before. The second goes in a message.
    """

    def __init__(self, sharing: Sharing) -> None:
        """``sharing`` says which rows go through memory that the server shares."""
        self._sharing = sharing
        self._known: dict[str, ModelMetadata] = {}

    def infer(self, model: str, x: Arrays, options: InferOptions) -> Steps[Result]:
        """Runs a model. Raises as ``Client.infer``."""
        first, believed = yield from self._prepare(model, x, options)
        sent = _Sent(first)
        try:
            try:
                response = yield sent.call()
            except InferenceError as error:
                changed = yield from self._after(error, sent.request, believed)
                if changed is None:
                    raise
                again = changed
            else:
                if not sent.request.lacks_outputs(response):
                    return sent.request.read(response)
                self._known.pop(model, None)
                again = sent.request.in_a_message()
        finally:
            first.drop_memory()
        response = yield Call(MODEL_INFER, again.message)
        return again.read(response)

    def _prepare(
        self, model: str, x: Arrays, options: InferOptions
    ) -> Steps[tuple[PreparedRequest, ModelMetadata | None]]:
        """The request, and what it believes of the model; None where all its names are the caller's."""
        given = described(x, options.datatype)
        is_unnamed = "" in given.arrays
        is_shared = self._sharing.is_worthwhile(given.tensor_bytes * len(given.arrays))
        input_name, outputs, metadata = "", options.outputs or (), None
        if is_unnamed or (is_shared and not outputs):
            metadata = self._known.get(model) or (yield from self._look_up(model))
            input_name = single_input(metadata) if is_unnamed else ""
            outputs = outputs or [output.name for output in metadata.outputs]
        lease = None
        if is_shared:
            tensors = len(given.arrays) + len(outputs)
            lease = yield from self._sharing.lease(given.tensor_bytes, tensors)
        try:
            packed = given.packed() if lease is None else given.placed(lease.allocate)
            rows: dict[str, Rows] = {name or input_name: each for name, each in packed.items()}
            return prepared(model, x, options, rows, lease, outputs), metadata
        except BaseException:
            if lease is not None:
                lease.drop()
            raise

    def _after(
        self, error: InferenceError, request: PreparedRequest, believed: ModelMetadata | None
    ) -> Steps[PreparedRequest | None]:
        """What to send instead of a request that was refused; None where nothing would help."""
        if request.lease is not None and (
            _is_lost(request.lease.region_name, error) or self._sharing.allows_message(error)
        ):
            return request.in_a_message()
        # Names that were looked up for this very request count too: the model may have changed since.
        if error.code is not grpc.StatusCode.INVALID_ARGUMENT or believed is None:
            return None
        if not request.names_are_believed:
            return None
        found = self._known.get(request.model)
        if found is None or found is believed:
            # Until there is an answer other requests go on with what was believed: they need not wait for it.
            try:
                found = yield from self._look_up(request.model)
            except InferenceError:
                return None
        if (found.inputs, found.outputs) == (believed.inputs, believed.outputs):
            return None
        return request.in_a_message(single_input(found) if request.is_unnamed else None)

    def _look_up(self, model: str) -> Steps[ModelMetadata]:
        response = yield Call(MODEL_METADATA, pb.ModelMetadataRequest(name=model))
        found = self._known[model] = model_metadata(response)
        return found


class _Sent:
    """A request as it travels: in memory, until it has to be sent again though the server may have begun with it.

    Such a server may be at the memory at any later time, so no other request must have it, nor this one's answer.
    """

    def __init__(self, request: PreparedRequest) -> None:
        self.request = request

    def call(self) -> Call:
        instead = None if self.request.lease is None else self._in_a_message
        return Call(MODEL_INFER, self.request.message, instead=instead)

    def _in_a_message(self) -> pb.ModelInferRequest:
        self.request.drop_memory()
        self.request = self.request.in_a_message()
        return self.request.message


def _is_lost(region: str, error: InferenceError) -> bool:
    """Whether the server does not know the memory: it was started again, or somebody unregistered all there is."""
    return error.code is grpc.StatusCode.NOT_FOUND and error.details == not_registered(region)
