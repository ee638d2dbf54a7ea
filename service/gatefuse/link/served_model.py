"""What a worker says about a model: all that a frontend knows of it."""

from dataclasses import dataclass, field
from typing import Any

from gatefuse.link.arena import tensors_bytes
from gatefuse_kernels.ledger import Mode
from gatefuse_kernels.shapes import DType

_ITEMSIZE = {dtype.value: dtype.itemsize for dtype in DType}


def load_key(name: str, generation: int) -> str:
    """Names one load of a model; the first is the name itself."""
    return f"{name}@{generation}" if generation else name


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a worker says about one model it serves; `index` is its number in Batch messages, never used again."""

    index: int
    name: str
    kind: str
    backend: str
    description: str
    dtype: str
    layers: tuple[int, ...]
    columns: int  # width of a row: H for an MLP; 0 for any width up to max_columns
    max_columns: int
    intermediate: int  # 0 for an elementwise model
    max_batch_rows: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights_id: str
    expression: str = ""  # of an elementwise model, and its constants: None for a vector
    constants: tuple[tuple[str, float | None], ...] = ()
    generation: int = 0  # loads of a model of that name before this one
    kernels: tuple[tuple[str, Mode], ...] = ()  # what its warm-up launched, as its batches will

    # Names this load of the model: rows of two loads never share a queue. Asked for several times a request.
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Works out the key."""
        object.__setattr__(self, "key", load_key(self.name, self.generation))

    @property
    def row_limit_columns(self) -> int:
        """The widest row the model takes."""
        return self.columns or self.max_columns

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements in the model's dtype."""
        return columns * _ITEMSIZE[self.dtype]

    @property
    def region_bytes(self) -> int:
        """What its largest batch needs of a slot's region, for the inputs as for the outputs."""
        tensors = max(len(self.inputs), len(self.outputs))
        return tensors_bytes(tensors, self.max_batch_rows, self.row_bytes(self.row_limit_columns))


def served_model(fields: dict[str, Any]) -> ServedModel:
    """A model out of JSON, which has lists for tuples."""
    tuples = {name: tuple(fields[name]) for name in ("layers", "inputs", "outputs")}
    constants = tuple((name, value) for name, value in fields["constants"])
    kernels = tuple((name, mode) for name, mode in fields["kernels"])
    del fields["key"]
    return ServedModel(**{**fields, **tuples, "constants": constants, "kernels": kernels})
