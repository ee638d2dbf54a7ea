"""Names for requests: the client's own, or one that no other request of the service has."""

import re
import secrets
from itertools import count

_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Random for each process, so that frontends and their successors share no name.
_prefix = secrets.token_hex(6)
_numbers = count(1)


def is_accepted(request_id: str) -> bool:
    """Whether a client's name for a request can be logged and sent back as it is."""
    return _ACCEPTED.fullmatch(request_id) is not None


def new_request_id() -> str:
    """A name that no request had before."""
    return f"{_prefix}-{next(_numbers):x}"
