"""The YAML configuration: typed, checked once, every error names its key.

The file is read by the process that starts the service; what the other processes need travels to them as these
value types. Nothing here imports torch, ray or grpc.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gatefuse_kernels.expression import ExpressionError, parse_expression
from gatefuse_kernels.plan import PlanTable, read_table
from gatefuse_kernels.shapes import DType

MLP_KINDS = ("swiglu", "geglu", "reglu")

PositiveInt = Annotated[int, Field(gt=0)]


class ConfigError(ValueError):
    """The configuration cannot be served; the text says which key and why."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Batching(_Strict):
    """How the rows of one model are queued and batched."""

    max_batch_rows: Annotated[int, Field(gt=0, le=65536)] = 256
    max_queue_delay_us: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    max_queue_rows: PositiveInt = 8192
    default_timeout_ms: PositiveInt = 30_000

    @model_validator(mode="after")
    def _queue_holds_a_batch(self) -> Self:
        if self.max_queue_rows < self.max_batch_rows:
            raise ValueError(
                f"max_queue_rows ({self.max_queue_rows}) must hold at least one full batch "
                f"of max_batch_rows ({self.max_batch_rows})"
            )
        return self


class RandomWeights(_Strict):
    """Weights drawn from a seed, for load tests without a checkpoint."""

    hidden: PositiveInt
    intermediate: PositiveInt
    layers: PositiveInt = 1
    seed: Annotated[int, Field(ge=0)] = 0


class ModelConfig(_Strict):
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
    columns: PositiveInt | None = None
    max_columns: PositiveInt = 8192
    constants: dict[str, float] = {}

    @property
    def is_mlp(self) -> bool:
        """True for every kind but elementwise."""
        return self.kind in MLP_KINDS

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
        for key in ("expression", "columns"):
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
        if self.backend not in ("eager", "auto"):
            raise ValueError(
                "an elementwise model runs on backend: eager (or auto) in this version"
            )
        try:
            parse_expression(self.expression, self.constants)
        except ExpressionError as error:
            raise ValueError(str(error)) from error


def _read_plan_table(given: Any) -> Any:
    return read_table(given) if isinstance(given, Path) else given


class ServiceConfig(_Strict):
    """The whole file.

    The plan table is read here, once, and goes to the workers as it was read: a file that changes under a running
    service would give a restarted worker other plans, and so other bits, than the rest.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    models: tuple[ModelConfig, ...]
    host: str = "127.0.0.1"
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = 8001
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8002
    device: Literal["auto", "cpu", "cuda"] = "auto"
    frontends: Annotated[int, Field(ge=1, le=64)] = 1
    workers: PositiveInt | None = None
    worker_threads: PositiveInt | None = None
    batch_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    drain_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    max_message_bytes: Annotated[int, Field(ge=65536, le=2**31 - 1)] = 256 * 2**20
    plan_table: Annotated[PlanTable | None, BeforeValidator(_read_plan_table)] = None

    @field_validator("models")
    @classmethod
    def _some_models(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        # Field(min_length=1) would add a second, wrong line to every error inside a model.
        if not models:
            raise ValueError("name at least one model")
        return models

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are named '{name}'")
        most = max(model.replicas for model in self.models)
        if self.workers is not None and self.workers < most:
            raise ValueError(f"workers ({self.workers}) is below the largest 'replicas' ({most})")
        if self.frontends > 1 and self.grpc_port == 0:
            raise ValueError("several frontends share one port: give a grpc_port other than 0")
        return self

    def with_overrides(self, overrides: dict[str, Any]) -> "ServiceConfig":
        """The same configuration with some top-level keys replaced, checked again.

        Raises:
            ConfigError: the result breaks a rule.
        """
        try:
            return ServiceConfig.model_validate({**dict(self), **overrides})
        except ValidationError as error:
            raise ConfigError(_readable(error)) from error

    @property
    def worker_count(self) -> int:
        """Workers to start: as asked, or as many as the model with the most replicas needs."""
        return self.workers or max(model.replicas for model in self.models)


def load_config(path: Path) -> ServiceConfig:
    """Reads and checks a configuration file; paths in it are relative to the file's own folder.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule; the text names the key.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    return parse_config(raw, base=path.parent)


def parse_config(raw: object, base: Path) -> ServiceConfig:
    """Checks an already parsed configuration; `base` is the folder relative paths start from."""
    if not isinstance(raw, dict):
        raise ConfigError("the configuration must be a mapping with a 'models' list")
    models = raw.get("models")
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ConfigError("models: must be a list of mappings")
    resolved = [_absolute(model, "checkpoint", base) for model in _expand_like(models)]
    top = _absolute(raw, "plan_table", base)
    try:
        return ServiceConfig.model_validate({**top, "models": resolved})
    except ValidationError as error:
        raise ConfigError(_readable(error)) from error


def _expand_like(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fills a model that says `like: other` with what the other says, its own keys winning."""
    by_name: dict[str, dict[str, Any]] = {}
    expanded = []
    for position, model in enumerate(models):
        parent_name = model.get("like")
        if parent_name is not None:
            parent = by_name.get(str(parent_name))
            if parent is None:
                raise ConfigError(
                    f"models.{position}.like: no model above is named '{parent_name}'"
                )
            own = {key: value for key, value in model.items() if key != "like"}
            model = {**parent, **own}
        by_name[str(model.get("name"))] = model
        expanded.append(model)
    return expanded


def _absolute(mapping: dict[str, Any], key: str, base: Path) -> dict[str, Any]:
    """The mapping with the path under `key`, if there is one, starting from `base`."""
    path = mapping.get(key)
    if path is None:
        return mapping
    return {**mapping, key: (base / Path(str(path)).expanduser()).resolve()}


def _readable(error: ValidationError) -> str:
    """One line per broken rule, each starting with the key's path."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        lines.append(f"{key}: {item['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)
