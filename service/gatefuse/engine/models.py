"""Loads what the configuration names: weights through the shared store, one runner per layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gatefuse.config import ConfigError, ModelConfig
from gatefuse.link import ServedModel
from gatefuse_kernels import dtypes
from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.elementwise import Elementwise, build_elementwise
from gatefuse_kernels.expression import parse_expression
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import PlanTable
from gatefuse_kernels.shapes import Activation
from gatefuse_kernels.weights import WeightSource, WeightStore, open_checkpoint, random_source

ACTIVATIONS = {
    "swiglu": (Activation.SILU,),
    "geglu": (Activation.GELU, Activation.GELU_TANH),
    "reglu": (Activation.RELU,),
}


Runner = Mlp | Elementwise
"""Computes the rows of one layer."""


@dataclass(frozen=True)
class LoadedModel:
    """A model on the device: what it says of itself, and a runner per layer."""

    served: ServedModel
    dtype: torch.dtype
    runners: dict[int, Runner]
    graph_buckets: tuple[int, ...]  # row counts to capture on a GPU; none where launches are direct

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize


def load_models(
    configs: Sequence[ModelConfig],
    device: torch.device,
    ledger: Ledger,
    table: PlanTable | None = None,
) -> list[LoadedModel]:
    """Loads every model; equal weights are loaded once. `table` is the configuration's own plan table.

    Raises:
        ConfigError: a model asks for layers that its checkpoint lacks, or for the wrong kind of gate;
            or the table was measured on another device.
        CheckpointError: a checkpoint cannot be read.
    """
    store = WeightStore(device)
    if table is not None:
        _check_table(table, device)
    return [
        _load_mlp(index, config, store, ledger, table)
        if config.is_mlp
        else _load_elementwise(index, config, ledger)
        for index, config in enumerate(configs)
    ]


def _load_mlp(
    index: int,
    config: ModelConfig,
    store: WeightStore,
    ledger: Ledger,
    table: PlanTable | None,
) -> LoadedModel:
    source = _open_source(config)
    layers = _chosen_layers(config, source)
    mlps = {
        layer: build_mlp(
            config.backend,
            store.get(source, layer, config.dtype),
            ledger=ledger,
            max_rows=config.batching.max_batch_rows,
            deterministic=config.deterministic,
            table=table,
        )
        for layer in layers
    }
    first = mlps[layers[0]]
    served = ServedModel(
        index=index,
        name=config.name,
        kind=config.kind,
        backend=first.backend,
        description=first.description,
        dtype=config.dtype.value,
        layers=layers,
        columns=source.shape.hidden,
        max_columns=source.shape.hidden,
        intermediate=source.shape.intermediate,
        max_batch_rows=config.batching.max_batch_rows,
        input_name="hidden_states",
        output_name="output",
        weights_id=source.source_id,
    )
    buckets = first.graph_buckets if config.cuda_graphs else ()
    return LoadedModel(served, dtypes.to_torch(config.dtype), dict(mlps), buckets)


def _load_elementwise(index: int, config: ModelConfig, ledger: Ledger) -> LoadedModel:
    assert config.expression is not None
    expression = parse_expression(config.expression, config.constants)
    runner = build_elementwise(
        expression,
        ledger=ledger,
        dtype=config.dtype,
        max_rows=config.batching.max_batch_rows,
    )
    served = ServedModel(
        index=index,
        name=config.name,
        kind=config.kind,
        backend=runner.backend,
        description=runner.description,
        dtype=config.dtype.value,
        layers=(0,),
        columns=config.columns or 0,
        max_columns=config.columns or config.max_columns,
        intermediate=0,
        max_batch_rows=config.batching.max_batch_rows,
        input_name=expression.inputs[0],
        output_name="y",
        weights_id="",
    )
    return LoadedModel(served, dtypes.to_torch(config.dtype), {0: runner}, graph_buckets=())


def _check_table(table: PlanTable, device: torch.device) -> None:
    if device.type != "cuda":
        return  # there are no plans to choose from
    try:
        table.check_device(profile_of(device))
    except ValueError as error:
        raise ConfigError(f"plan_table: {error}") from error


def _open_source(config: ModelConfig) -> WeightSource:
    wanted = ACTIVATIONS[config.kind]
    if config.random is not None:
        source = random_source(
            config.random.hidden,
            config.random.intermediate,
            config.random.layers,
            config.random.seed,
        )
        return replace(source, activation=wanted[-1])
    assert config.checkpoint is not None
    checkpoint = open_checkpoint(config.checkpoint)
    if checkpoint.activation not in wanted:
        raise ConfigError(
            f"model '{config.name}' is of kind {config.kind}, but its checkpoint's config.json asks for "
            f"the activation {checkpoint.activation}"
        )
    return checkpoint


def _chosen_layers(config: ModelConfig, source: WeightSource) -> tuple[int, ...]:
    if config.layers == "all":
        return source.layers
    missing = sorted(set(config.layers) - set(source.layers))
    if missing:
        raise ConfigError(
            f"model '{config.name}' asks for layers {missing}, which its weights do not have"
        )
    return config.layers
