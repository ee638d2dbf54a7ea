"""Where spans go, and of how many requests."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from gatefuse.config.strict import Strict


class TracingConfig(Strict):
    """Spans of the requests that callers trace, and of the share `sample_ratio` of the others.

    Without `endpoint`, a collector's base URL, OpenTelemetry's own environment variables say where they go.
    """

    endpoint: str | None = None
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01

    @field_validator("endpoint")
    @classmethod
    def _url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("give a URL that begins with http:// or https://")
        return endpoint
