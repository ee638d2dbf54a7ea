"""One tree of errors: each class carries its gRPC status, and a text that is safe to show a client."""

import grpc

NEVER = -1
"""As push-back: gRPC's word for what will not be otherwise when it is tried again."""


class ServiceError(Exception):
    """An answer other than OK. `str(error)` goes to the client as it is: no paths, no internals."""

    status = grpc.StatusCode.INTERNAL
    reason = "internal"
    # When to ask again, in milliseconds: gRPC's push-back, which clients that retry keep to; negative for never. None
    # says nothing.
    pushback_ms: int | None = None


class InvalidRequest(ServiceError):
    """The request breaks a rule of the protocol or of the model; the text names the rule.

    `reason` is a metric label: shape, dtype, size, mismatch, model or unsupported.
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


class AlreadyExists(InvalidRequest):
    """Something of that name is there already."""

    status = grpc.StatusCode.ALREADY_EXISTS

    def __init__(self, text: str) -> None:
        """`text` names what exists."""
        super().__init__("mismatch", text)


class Unsupported(InvalidRequest):
    """A part of the protocol that this server does not have, or that is off."""

    status = grpc.StatusCode.UNIMPLEMENTED

    def __init__(self, text: str) -> None:
        """`text` says what is missing, and how to get it."""
        super().__init__("unsupported", text)


class Shed(ServiceError):
    """Refused, or given up, for a reason that passes; `reason` says which and is a metric label."""


class QueueFull(Shed):
    """The bounded queue of the model has no room for these rows."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "queue_full"
    pushback_ms = (
        50  # some batches later; with jitter at the client, so that not all come back at once
    )


class TooManyRequests(QueueFull):
    """As many requests of its level wait as the model's policy allows."""

    reason = "limit"


class DeadlineExceeded(Shed):
    """The deadline passed before an answer was ready."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "deadline"

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("deadline exceeded before the rows were computed")


class QueueTimeout(Shed):
    """The request waited in the queue as long as it may, by its own `timeout` or by the model's policy."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "queue_timeout"

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("the request waited in the queue for longer than its timeout")


class Draining(Shed):
    """The server is shutting down and takes no new work."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "draining"
    pushback_ms = 1000  # by then the port is closed, and the name leads elsewhere

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("the server is draining")


class NoReplica(Shed):
    """No worker can run the model now."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "no_replica"
    pushback_ms = 1000  # a worker that died takes seconds to load its models again


class NotLoaded(Shed):
    """The model is configured, and was unloaded: somebody wanted it so, and it is no fault of the service."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "unloaded"
    pushback_ms = NEVER  # somebody must load it


class SupervisorSilent(Shed):
    """The driver, which alone changes models and settings, does not answer."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "no_replica"
    pushback_ms = 1000

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("the service's supervisor does not answer")


class ControlOff(ServiceError):
    """Models are loaded and unloaded by the operator alone."""

    status = grpc.StatusCode.UNAVAILABLE
    pushback_ms = NEVER

    def __init__(self) -> None:
        """The text is fixed."""
        super().__init__("model control is off: start the server with --model-control explicit")


class ComputeFailed(ServiceError):
    """The device refused the batch for a reason that is not the client's."""

    def __init__(self) -> None:
        """The text is fixed: the cause is in the server's log."""
        super().__init__("the batch could not be computed")
