"""One tree of errors: each class carries its gRPC status, and a text that is safe to show a client."""

import grpc


class ServiceError(Exception):
    """An answer other than OK. `str(error)` goes to the client as it is: no paths, no internals."""

    status = grpc.StatusCode.INTERNAL
    reason = "internal"


class InvalidRequest(ServiceError):
    """The request breaks a rule of the protocol or of the model; the text names the rule.

    `reason` is a metric label: shape, dtype, size, mismatch or model.
    """

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, reason: str, text: str) -> None:
        """`reason` is one of the labels above, `text` the client's message."""
        super().__init__(text)
        self.reason = reason


class NotFound(InvalidRequest):
    """No such model, version or layer."""

    status = grpc.StatusCode.NOT_FOUND

    def __init__(self, text: str) -> None:
        """`text` names what was not found."""
        super().__init__("model", text)


class Shed(ServiceError):
    """Refused before compute; `reason` says why and is a metric label."""


class QueueFull(Shed):
    """The bounded queue of the model has no room for these rows."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "queue_full"


class DeadlineExceeded(Shed):
    """The deadline passed before an answer was ready."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "deadline"

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("deadline exceeded before the rows were computed")


class Draining(Shed):
    """The server is shutting down and takes no new work."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "draining"

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("the server is draining")


class NoReplica(Shed):
    """No worker can run the model now."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "no_replica"


class ComputeFailed(ServiceError):
    """The device refused the batch for a reason that is not the client's."""

    def __init__(self) -> None:
        """The text is fixed: the cause is in the server's log."""
        super().__init__("the batch could not be computed")
