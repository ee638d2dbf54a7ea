"""What every part of the configuration has in common."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo

PositiveInt = Annotated[int, Field(gt=0)]

_READ_AGAIN = object()


class Strict(BaseModel):
    """A value that is checked once, does not change, and has no keys but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def given(self) -> dict[str, Any]:
        """The keys that were given, with their values: some must not be given at all beside others."""
        return {key: getattr(self, key) for key in self.model_fields_set}

    @classmethod
    def read_again(cls, text: str) -> Self:
        """The value that `model_dump_json` wrote: which keys were given, and the files it names, is not checked again.

        What a service runs must not depend on files that change or go under it.
        """
        return cls.model_validate_json(text, context=_READ_AGAIN)


def is_read_again(info: ValidationInfo) -> bool:
    """Whether the value was checked before it was written."""
    return info.context is _READ_AGAIN
