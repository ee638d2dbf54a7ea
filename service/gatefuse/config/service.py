"""The whole configuration."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gatefuse.config.errors import ConfigError, readable
from gatefuse.config.model import ModelConfig
from gatefuse.config.strict import PositiveInt, Strict
from gatefuse.config.tracing import TracingConfig
from gatefuse_kernels.plan import PlanTable, read_table


def _read_plan_table(given: Any) -> Any:
    return read_table(given) if isinstance(given, Path) else given


class ServiceConfig(Strict):
    """The whole file.

    The plan table is read here, once, and goes to the workers as it was read: a file that changes under a running
    service would give a restarted worker other plans, and so other bits, than the rest.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    models: tuple[ModelConfig, ...]
    host: str = "127.0.0.1"
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = 8001
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8002
    metrics: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    frontends: Annotated[int, Field(ge=1, le=64)] = 1
    workers: PositiveInt | None = None
    worker_threads: PositiveInt | None = None
    batch_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    drain_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    max_message_bytes: Annotated[int, Field(ge=65536, le=2**31 - 1)] = 256 * 2**20
    allow_client_shm: bool = False
    model_control: Literal["none", "explicit"] = "none"
    trace_file: Path | None = None
    tracing: TracingConfig | None = None
    log_format: Literal["text", "json"] = "text"
    slow_request_ms: Annotated[float, Field(gt=0)] = 1000.0
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
            return ServiceConfig.model_validate({**self.given(), **overrides})
        except ValidationError as error:
            raise ConfigError(readable(error)) from error

    def traced_to(self, endpoint: str) -> "ServiceConfig":
        """The same configuration with spans exported to another collector. Raises ConfigError."""
        tracing = {} if self.tracing is None else self.tracing.given()
        return self.with_overrides({"tracing": {**tracing, "endpoint": endpoint}})

    @property
    def worker_count(self) -> int:
        """Workers to start: as asked, or as many as the model with the most replicas needs."""
        return self.workers or max(model.replicas for model in self.models)
