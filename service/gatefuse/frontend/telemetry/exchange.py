"""One inference request and its answer, as the service's edge sees them."""

import time

from gatefuse.escaping import escaped
from gatefuse.frontend.requests.job import Job
from gatefuse.frontend.requests.parameters import MAX_QUOTED
from gatefuse.frontend.telemetry.request_ids import is_accepted, new_request_id
from gatefuse.trace_context import Parent, RequestTrace
from gatefuse_protos import open_inference_pb2 as pb

ID_KEY = "x-request-id"

Trailer = tuple[tuple[str, str], ...]


class Exchange:
    """What is known of a request so far; `job` is None until it is accepted, `code` empty until it has ended.

    Times are seconds of the machine's monotonic clock. `reason` says more than the status where it was refused.
    """

    # Defaults of the class, not set for each request: most of them stay.
    encode_s = 0.0
    ended_s = 0.0
    model_name = ""  # as its client wrote it
    layer: int | None = None  # that its client named
    job: Job | None = None
    trace: RequestTrace | None = None
    parent: Parent | None = None
    asked = False  # its client sent an identifier, and so wants to hear of it
    code = ""
    outcome = ""
    reason = ""
    _request_id = ""

    def __init__(self, method: str) -> None:
        """Begins now."""
        self.method = method
        self.started_s = time.monotonic()

    @property
    def request_id(self) -> str:
        """The client's name for it, or ours: made when it is first asked for, as most are never named."""
        if not self._request_id:
            self._request_id = new_request_id()
        return self._request_id

    def name(self, request_id: str) -> None:
        """Takes the client's name for it, if it is one that can be passed on and it has none yet."""
        if not self._request_id and is_accepted(request_id):
            self._request_id = request_id

    def asks(self, message: pb.ModelInferRequest) -> None:
        """Its message has been read."""
        self.model_name = message.model_name
        if "layer" in message.parameters:
            layer = message.parameters["layer"]
            if layer.WhichOneof("parameter_choice") == "int64_param":
                self.layer = layer.int64_param
        if message.id:
            self.name(message.id)

    @property
    def trace_id(self) -> str:
        """The trace's identifier, whether or not it is kept; empty where there is none."""
        if self.trace is not None:
            return self.trace.context.trace
        return self.parent.context.trace if self.parent is not None else ""

    @property
    def asked_for(self) -> dict[str, str | int]:
        """`model` and `layer`, of an accepted request as they are, of another as its client wrote them, if it did.

        For the eye, not for the labels of metrics: clients may write what they like.
        """
        if self.job is not None:
            request = self.job.request
            return {"model": request.model.name, "layer": request.layer}
        asked: dict[str, str | int] = {}
        if self.model_name:
            asked["model"] = escaped(self.model_name, MAX_QUOTED)
        if self.layer is not None:
            asked["layer"] = self.layer
        return asked

    @property
    def duration_s(self) -> float:
        """From its start to its status."""
        return self.ended_s - self.started_s

    def trailer(self, *, answered: bool) -> Trailer:
        """What its client is told beside the status: nothing, unless it asked or was refused."""
        if not answered:
            return ((ID_KEY, self.request_id),)
        if not self.asked:
            return ()
        if self.job is None:
            return ((ID_KEY, self.request_id),)
        cost = self.job.cost
        return (
            (ID_KEY, self.request_id),
            ("gatefuse-queue-us", str(round(cost.queue_s * 1e6))),
            ("gatefuse-device-us", str(round(cost.compute_s * 1e6))),
            ("gatefuse-batch-rows", str(cost.batch_rows)),
        )
