"""One model of the configuration: what it is, where its weights come from, how it is run and batched."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gatefuse.batching.queue_policy import TimeoutAction
from gatefuse.config.constants import Constant, Vector, VectorFile
from gatefuse.config.strict import PositiveInt, Strict, is_read_again
from gatefuse.config.vector_files import vector_columns
from gatefuse_kernels.expression import ExpressionError, Program, check_all_used, parse_program
from gatefuse_kernels.shapes import MAX_WIDTH, DType

MAX_PRIORITY_LEVELS = 1024
MLP_KINDS = ("swiglu", "geglu", "reglu")
_ELEMENTWISE_KEYS = ("expression", "outputs", "columns", "max_columns", "constants")

Width = Annotated[int, Field(strict=True, ge=1, le=MAX_WIDTH)]


class QueuePolicyConfig(Strict):
    """What becomes of the requests of one model that wait for long, and how many may."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: Annotated[int, Field(ge=0)] = 0
    allow_timeout_override: bool = True
    max_queue_size: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0


class Batching(Strict):
    """How the rows of one model are queued and batched."""

    max_batch_rows: Annotated[int, Field(gt=0, le=65536)] = 256
    max_queue_delay_us: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    max_queue_rows: PositiveInt = 8192
    default_timeout_ms: PositiveInt = 30_000
    priority_levels: Annotated[int, Field(ge=0, le=MAX_PRIORITY_LEVELS)] = 0
    default_priority_level: PositiveInt | None = None
    queue_policy: QueuePolicyConfig = QueuePolicyConfig()
    priority_queue_policy: dict[int, QueuePolicyConfig] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _default_is_a_level(self) -> Self:
        default = self.default_priority_level
        if self.priority_levels and (default is None or default > self.priority_levels):
            raise ValueError(
                f"default_priority_level must be one of the {self.priority_levels} levels: 1 is served first"
            )
        if not self.priority_levels and default is not None:
            raise ValueError("default_priority_level needs priority_levels")
        return self

    @model_validator(mode="after")
    def _policies_are_of_levels(self) -> Self:
        for level in self.priority_queue_policy:
            if not 1 <= level <= self.priority_levels:
                raise ValueError(
                    f"priority_queue_policy: {level} is none of the {self.priority_levels} priority_levels"
                )
        return self

    @model_validator(mode="after")
    def _queue_holds_a_batch(self) -> Self:
        if self.max_queue_rows < self.max_batch_rows:
            raise ValueError(
                f"max_queue_rows ({self.max_queue_rows}) must hold at least one full batch "
                f"of max_batch_rows ({self.max_batch_rows})"
            )
        return self


class RandomWeights(Strict):
    """Weights drawn from a seed, for load tests without a checkpoint."""

    hidden: PositiveInt
    intermediate: PositiveInt
    layers: PositiveInt = 1
    seed: Annotated[int, Field(ge=0)] = 0


class ModelConfig(Strict):
    """One model: the name on the wire, where its weights come from, how it is run."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    kind: Literal["swiglu", "geglu", "reglu", "elementwise"] = "swiglu"
    checkpoint: Path | None = None
    random: RandomWeights | None = None
    layers: Literal["all"] | tuple[Annotated[int, Field(ge=0)], ...] = "all"
    backend: Literal["fused", "eager", "compiled", "textbook", "auto"] = "auto"
    dtype: DType = DType.BF16
    replicas: PositiveInt = 1
    cuda_graphs: bool = True
    deterministic: bool = False
    batching: Batching = Batching()
    expression: str | None = None
    outputs: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    columns: Width | None = None
    max_columns: Width = 8192
    constants: dict[str, Constant] = Field(default={})

    @property
    def is_mlp(self) -> bool:
        """True for every kind but elementwise."""
        return self.kind in MLP_KINDS

    @property
    def scalars(self) -> dict[str, float]:
        """The constants that are one number."""
        return {name: value for name, value in self.constants.items() if isinstance(value, float)}

    @property
    def vectors(self) -> dict[str, Vector]:
        """The constants that have a value for each column."""
        return {
            name: value for name, value in self.constants.items() if not isinstance(value, float)
        }

    @property
    def program(self) -> Program:
        """The parsed expression of an elementwise model. Raises ExpressionError if there is no such program."""
        assert self.expression is not None
        return parse_program(self.expression, self.scalars, tuple(self.vectors), self.outputs)

    @property
    def weights_key(self) -> str:
        """Models with the same key read the same weights, so they belong on the same workers."""
        return f"{self.checkpoint}|{self.random}" if self.is_mlp else self.name

    @field_validator("constants", mode="before")
    @classmethod
    def _names_are_texts(cls, constants: Any) -> Any:
        for name in constants if isinstance(constants, dict) else ():
            if not isinstance(name, str):
                raise ValueError(
                    f"{name!r} is no name (YAML reads no, off, yes, on and numbers as values): quote the name"
                )
        return constants

    @field_validator("layers")
    @classmethod
    def _some_layers(cls, layers: Any) -> Any:
        if not layers:
            raise ValueError("name at least one layer, or 'all'")
        if layers != "all" and len(set(layers)) < len(layers):
            raise ValueError("a layer is named twice")
        return layers

    @model_validator(mode="after")
    def _one_source(self, info: ValidationInfo) -> Self:
        if is_read_again(info):
            return self
        if self.is_mlp:
            self._check_mlp()
        else:
            self._check_elementwise()
        return self

    def _check_mlp(self) -> None:
        if self.deterministic and self.backend not in ("fused", "auto"):
            raise ValueError(
                f"'deterministic' needs backend: fused (or auto): with {self.backend} the order in which "
                "a row's products are added depends on the number of rows; a library, for one, picks its "
                "kernel by it"
            )
        for key in _ELEMENTWISE_KEYS:
            if key in self.model_fields_set:
                raise ValueError(f"'{key}' belongs to kind: elementwise; this is {self.kind}")
        if (self.checkpoint is None) == (self.random is None):
            raise ValueError(f"a {self.kind} model needs exactly one of 'checkpoint' and 'random'")

    def _check_elementwise(self) -> None:
        if self.expression is None:
            raise ValueError("an elementwise model needs an 'expression'")
        if self.checkpoint is not None or self.random is not None:
            raise ValueError("an elementwise model has no 'checkpoint' or 'random' weights")
        if self.layers != "all":
            raise ValueError("an elementwise model has no 'layers'")
        if self.deterministic:
            raise ValueError("'deterministic' belongs to the kinds with weights")
        if self.cuda_graphs and "cuda_graphs" in self.model_fields_set:
            raise ValueError(
                "'cuda_graphs' belongs to the kinds with weights: an elementwise model is one launch, made "
                "directly"
            )
        if self.backend == "textbook":
            raise ValueError("backend 'textbook' is an MLP's: an elementwise model has none")
        self._check_vectors()
        try:
            self.program  # noqa: B018 - parsed to be checked
            check_all_used(self.expression, self.constants)
        except ExpressionError as error:
            given = "expression and outputs" if self.outputs else "expression"
            raise ValueError(f"{given}: {error}") from error

    def _check_vectors(self) -> None:
        """Vectors agree on the columns; of those in other files the header is read, the values by the worker."""
        columns, fixed_by = self.columns, "columns"
        for name, value in self.vectors.items():
            try:
                length = vector_columns(value) if isinstance(value, VectorFile) else len(value)
            except ValueError as error:
                raise ValueError(f"constants.{name}: {error}") from error
            if columns not in (None, length):
                raise ValueError(
                    f"constants.{name} has {length} values, but {fixed_by} says {columns} columns"
                )
            columns, fixed_by = length, f"constants.{name}"
        if columns is None:
            return
        most = self.max_columns if "max_columns" in self.model_fields_set else MAX_WIDTH
        if columns > most:
            raise ValueError(
                f"{fixed_by} says {columns} columns, more than the {most} that are possible"
            )
