"""What every part of the configuration has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """A value that is checked once, does not change, and has no keys but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)
