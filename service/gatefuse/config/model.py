"""One model of the configuration: what it is, where its weights come from, how it is run and batched."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gatefuse.config.constants import Constant, Vector, VectorFile
from gatefuse.config.strict import PositiveInt, Strict
from gatefuse.queue_policy import TimeoutAction
from gatefuse_kernels.expression import ExpressionError, Program, parse_program
from gatefuse_kernels.shapes import DType

MAX_PRIORITY_LEVELS = 1024
MLP_KINDS = ("swiglu", "geglu", "reglu")


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
    columns: PositiveInt | None = None
    max_columns: PositiveInt = 8192
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

    @field_validator("layers")
    @classmethod
    def _some_layers(cls, layers: Any) -> Any:
        if not layers:
            raise ValueError("name at least one layer, or 'all'")
        if layers != "all" and len(set(layers)) < len(layers):
            raise ValueError("a layer is named twice")
        return layers

    @model_validator(mode="after")
    def _one_source(self) -> Self:
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
        if (self.checkpoint is None) == (self.random is None):
            raise ValueError(f"a {self.kind} model needs exactly one of 'checkpoint' and 'random'")
        for key in ("expression", "outputs", "columns"):
            if getattr(self, key) is not None:
                raise ValueError(f"'{key}' belongs to kind: elementwise")
        if self.constants:
            raise ValueError("'constants' belongs to kind: elementwise")

    def _check_elementwise(self) -> None:
        if self.expression is None:
            raise ValueError("an elementwise model needs an 'expression'")
        if self.checkpoint is not None or self.random is not None:
            raise ValueError("an elementwise model has no 'checkpoint' or 'random' weights")
        if self.layers != "all":
            raise ValueError("an elementwise model has no 'layers'")
        if self.deterministic:
            raise ValueError("'deterministic' belongs to the kinds with weights")
        if self.backend == "textbook":
            raise ValueError("backend 'textbook' is an MLP's: an elementwise model has none")
        self._check_vectors()
        try:
            self.program  # noqa: B018 - parsed to be checked
        except ExpressionError as error:
            given = "expression and outputs" if self.outputs else "expression"
            raise ValueError(f"{given}: {error}") from error

    def _check_vectors(self) -> None:
        """Vectors in the file itself agree on the columns; those in other files are looked at by the worker."""
        columns, fixed_by = self.columns, "columns"
        for name, value in self.vectors.items():
            if isinstance(value, VectorFile):
                continue
            if columns not in (None, len(value)):
                raise ValueError(
                    f"constants.{name} has {len(value)} values, but {fixed_by} says {columns} columns"
                )
            columns, fixed_by = len(value), f"constants.{name}"
