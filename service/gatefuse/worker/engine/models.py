"""Loads what the configuration names: weights through the shared store, one runner per layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import torch

from gatefuse.config import ConfigError, ModelConfig
from gatefuse.link.served_model import ServedModel
from gatefuse.worker.engine.vectors import fixed_columns, load_vectors
from gatefuse_kernels import dtypes
from gatefuse_kernels.backends import Mlp, build_mlp
from gatefuse_kernels.device_profile import profile_of
from gatefuse_kernels.elementwise import build_elementwise
from gatefuse_kernels.ledger import Ledger, Mode
from gatefuse_kernels.plan import PlanTable
from gatefuse_kernels.shapes import Activation
from gatefuse_kernels.weights.checkpoint import open_checkpoint
from gatefuse_kernels.weights.packed import WeightSource
from gatefuse_kernels.weights.random_weights import random_source
from gatefuse_kernels.weights.store import WeightStore

ACTIVATIONS = {
    "swiglu": (Activation.SILU,),
    "geglu": (Activation.GELU, Activation.GELU_TANH),
    "reglu": (Activation.RELU,),
}


class Runner(Protocol):
    """Computes the rows of one layer; `Elementwise` is one as it is."""

    def padded_rows(self, rows: int) -> int:
        """Rows really computed for `rows` given ones."""

    def warm_up(self) -> None:
        """Compiles whatever a call would otherwise wait for."""

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Computes the outputs from the inputs, each [M, C] contiguous, on the current stream."""


class MlpRunner:
    """An MLP, which has one input and one output, as a runner."""

    def __init__(self, mlp: Mlp) -> None:
        """Runs `mlp`."""
        self.mlp = mlp
        self.padded_rows = mlp.padded_rows
        self.warm_up = mlp.warm_up

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """See `Runner`."""
        self.mlp(inputs[0], outputs[0])


@dataclass(frozen=True)
class LoadedModel:
    """A model on the device: what it says of itself, and a runner per layer."""

    served: ServedModel
    dtype: torch.dtype
    runners: dict[int, Runner]
    ledger: Ledger  # its runners count in it
    graph_buckets: tuple[int, ...]  # row counts to capture on a GPU; none where launches are direct

    @property
    def warm_up_shapes(self) -> tuple[tuple[int, int], ...]:
        """The largest batch and the smallest, in rows and in columns: compilers treat a single one apart."""
        served = self.served
        rows = {1, served.max_batch_rows}
        columns = {served.row_limit_columns} | ({1} if not served.columns else set())
        return tuple(product(sorted(rows), sorted(columns)))

    def warmed_up(self, *captured: Iterable[str]) -> "LoadedModel":
        """The same, saying which kernels its batches launch: those captured in graphs, else what the warm-up ran."""
        launched = {entry.kernel for entry in self.ledger.drain()}
        mode: Mode = "graph" if captured else "eager"
        names = set[str]().union(*captured) if captured else launched
        kernels = tuple((name, mode) for name in sorted(names))
        return replace(self, served=replace(self.served, kernels=kernels))


class ModelLoader:
    """Loads models onto one device; equal weights are loaded once, and let go with the last model that has them."""

    def __init__(self, device: torch.device, table: PlanTable | None = None) -> None:
        """`table` is the configuration's own plan table.

        Raises:
            ConfigError: it was measured on another device.
        """
        self._store = WeightStore(device)
        self._table = table
        if table is not None:
            _check_table(table, device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all MLP weights on the device; models that share some count them once."""
        return self._store.nbytes

    def load(self, config: ModelConfig, index: int, generation: int = 0) -> LoadedModel:
        """Loads one model; `index` and `generation` are what it will say of itself.

        Raises:
            ConfigError: it asks for layers that its checkpoint lacks, or for the wrong kind of gate; or a vector
                cannot be read.
            CheckpointError: a checkpoint cannot be read.
        """
        ledger = Ledger()
        if config.is_mlp:
            model = _load_mlp(index, config, self._store, ledger, self._table)
        else:
            model = _load_elementwise(index, config, self._store.device, ledger)
        return replace(model, served=replace(model.served, generation=generation))


def load_models(
    configs: Sequence[ModelConfig], device: torch.device, table: PlanTable | None = None
) -> list[LoadedModel]:
    """Loads every model, each under its position. Raises as `ModelLoader` does."""
    loader = ModelLoader(device, table)
    return [loader.load(config, index) for index, config in enumerate(configs)]


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
        inputs=("hidden_states",),
        outputs=("output",),
        weights_id=source.source_id,
    )
    buckets = first.graph_buckets if config.cuda_graphs else ()
    runners: dict[int, Runner] = {layer: MlpRunner(mlp) for layer, mlp in mlps.items()}
    return LoadedModel(served, dtypes.to_torch(config.dtype), runners, ledger, buckets)


def _load_elementwise(
    index: int, config: ModelConfig, device: torch.device, ledger: Ledger
) -> LoadedModel:
    program = config.program
    vectors = load_vectors(config, device)
    columns = fixed_columns(config, vectors)
    runner = build_elementwise(
        config.backend,
        program,
        vectors={name: vectors[name] for name in program.vectors},
        ledger=ledger,
        dtype=config.dtype,
        device=device,
        max_rows=config.batching.max_batch_rows,
        columns=columns,
    )
    served = ServedModel(
        index=index,
        name=config.name,
        kind=config.kind,
        backend=runner.backend,
        description=runner.description,
        dtype=config.dtype.value,
        layers=(0,),
        columns=columns or 0,
        max_columns=columns or config.max_columns,
        intermediate=0,
        max_batch_rows=config.batching.max_batch_rows,
        inputs=program.inputs,
        outputs=program.outputs,
        weights_id="",
        expression=program.text,
        constants=(*config.scalars.items(), *((name, None) for name in config.vectors)),
    )
    return LoadedModel(served, dtypes.to_torch(config.dtype), {0: runner}, ledger, graph_buckets=())


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
