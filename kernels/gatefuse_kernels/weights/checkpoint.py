"""Gated MLPs out of Hugging Face safetensors checkpoints, sharded or single, memory-mapped.

Layers are found by name under any prefix: `...layers.N.mlp.{gate,up,down}_proj.weight` (Llama,
Mistral, Qwen, Gemma) or `...layers.N.mlp.{gate_up,down}_proj.weight` (Phi-3).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from gatefuse_kernels import dtypes
from gatefuse_kernels.errors import CheckpointError
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.weights.hf_config import MlpConfig, read_config, read_json_object
from gatefuse_kernels.weights.packed import MlpWeights

__all__ = ["Checkpoint", "CheckpointError", "open_checkpoint"]

_MLP_TENSOR = re.compile(
    r"(?P<prefix>(?:.*\.)?)layers\.(?P<layer>\d+)\.mlp\."
    r"(?P<part>gate_proj|up_proj|down_proj|gate_up_proj)\.(?P<kind>.+)"
)
_SPLIT = frozenset({"gate_proj", "up_proj", "down_proj"})
_MERGED = frozenset({"gate_up_proj", "down_proj"})
_FLOATS = {"F64", "F32", "F16", "BF16"}
_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_FINITE_CHECK_ROWS = 1024


@dataclass(frozen=True)
class _Tensor:
    """A tensor by name, and its header as the shard's file declares it."""

    name: str
    file: Path
    shape: tuple[int, ...]
    kind: str

    def expect(self, shape: tuple[int, ...], why: str) -> None:
        if self.shape != shape:
            raise CheckpointError(
                f"{self.file}: tensor {self.name!r} has shape {list(self.shape)}, "
                f"expected {list(shape)} ({why})"
            )

    def expect_matrix(self) -> None:
        if self.kind not in _FLOATS:
            raise CheckpointError(
                f"{self.file}: tensor {self.name!r} holds {self.kind}; quantized weights are not "
                f"supported, only {', '.join(sorted(_FLOATS))}"
            )
        if len(self.shape) != 2:
            raise CheckpointError(
                f"{self.file}: tensor {self.name!r} has shape {list(self.shape)}, "
                "expected two dimensions"
            )

    def read(self) -> torch.Tensor:
        with _opened(self.file) as shard:
            tensor: torch.Tensor = shard.get_tensor(self.name)
            return tensor


@dataclass(frozen=True)
class Checkpoint:
    """The MLPs of one checkpoint; a `WeightSource`. Made by `open_checkpoint`."""

    shape: MlpShape
    activation: Activation
    source_id: str
    _layers: Mapping[int, Mapping[str, _Tensor]]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layer numbers, ascending."""
        return tuple(sorted(self._layers))

    def load(self, layer: int, dtype: DType, device: torch.device) -> MlpWeights:
        """Read one layer from its shards into packed weights, converting once.

        Raises:
            CheckpointError: no such layer, a shard cannot be read, or a value overflows fp16.
        """
        if layer not in self._layers:
            raise CheckpointError(f"the checkpoint has no layer {layer}; it has {self.layers}")
        parts = self._layers[layer]
        hidden, intermediate = self.shape.hidden, self.shape.intermediate
        kind = dtypes.to_torch(dtype)
        gate_up = torch.empty(2 * intermediate, hidden, dtype=kind, device=device)
        down = torch.empty(hidden, intermediate, dtype=kind, device=device)
        if "gate_up_proj" in parts:
            _copy_into(gate_up, parts["gate_up_proj"])
        else:
            _copy_into(gate_up[:intermediate], parts["gate_proj"])
            _copy_into(gate_up[intermediate:], parts["up_proj"])
        _copy_into(down, parts["down_proj"])
        return MlpWeights(gate_up, down, self.activation)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Find the MLPs of a checkpoint; reads headers only.

    Args:
        path: a directory in the Hugging Face layout, or one .safetensors file with `config.json`
            beside it.

    Raises:
        CheckpointError: something is missing, corrupt, quantized, biased or of the wrong shape.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such file or folder")
    directory = path if path.is_dir() else path.parent
    config_file = directory / "config.json"
    config = read_config(config_file)
    files, expected = _shards(path)
    tensors = _headers(files, expected)
    layers = _complete_layers(tensors, directory)
    shape = _checked_shape(layers, config, config_file)
    return Checkpoint(shape, config.activation, _identity(files, config), layers)


def _shards(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The checkpoint's files, and where an index says each tensor is (empty without an index)."""
    if not path.is_dir():
        if path.suffix != ".safetensors" or not path.is_file():
            raise CheckpointError(f"{path}: neither a directory nor a .safetensors file")
        return [path], {}
    # transformers, too, prefers the single file where both exist.
    if (path / _SINGLE_FILE).is_file():
        return [path / _SINGLE_FILE], {}
    index_file = path / _INDEX_FILE
    if not index_file.is_file():
        raise CheckpointError(f"{path}: has neither {_SINGLE_FILE} nor {_INDEX_FILE}")
    weight_map = read_json_object(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_file}: has no weight_map")
    for tensor, name in weight_map.items():
        if not _is_plain_name(name):
            raise CheckpointError(
                f"{index_file}: tensor {tensor!r} names the file {name!r}; only plain "
                ".safetensors names beside the index are allowed"
            )
    wanted = {tensor: name for tensor, name in weight_map.items() if _MLP_TENSOR.fullmatch(tensor)}
    files = [path / name for name in sorted(set(wanted.values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{file}: the shard is missing, though {index_file.name} names it"
            )
    return files, wanted


def _is_plain_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and not name.startswith(".")
        and not set(name) & {"/", "\\", "\0"}
    )


def _opened(file: Path) -> safe_open:
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: corrupt or truncated ({error})") from error


def _headers(files: list[Path], expected: Mapping[str, str]) -> dict[str, _Tensor]:
    tensors: dict[str, _Tensor] = {}
    for file in files:
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                if not _MLP_TENSOR.fullmatch(name):
                    continue
                header = shard.get_slice(name)
                shape = tuple(header.get_shape())
                tensors[name] = _Tensor(name, file, shape, str(header.get_dtype()))
    for name, file_name in expected.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise CheckpointError(f"{file_name}: lacks tensor {name!r}, though the index names it")
    return tensors


def _complete_layers(tensors: Mapping[str, _Tensor], where: Path) -> dict[int, dict[str, _Tensor]]:
    """Group tensors by layer; each must have exactly the parts of one known layout."""
    prefixes: dict[str, dict[int, dict[str, _Tensor]]] = {}
    for name, tensor in tensors.items():
        match = _MLP_TENSOR.fullmatch(name)
        if match is None:
            continue
        if match["kind"] != "weight":
            raise CheckpointError(
                f"{tensor.file}: tensor {name!r}: an MLP with a {match['kind']} is not supported, "
                "only plain weights"
            )
        tensor.expect_matrix()
        layers = prefixes.setdefault(match["prefix"], {})
        layers.setdefault(int(match["layer"]), {})[match["part"]] = tensor
    if not prefixes:
        raise CheckpointError(f"{where}: no tensor is named like ...layers.N.mlp.gate_proj.weight")
    if len(prefixes) > 1:
        raise CheckpointError(
            f"{where}: MLPs under several prefixes: {', '.join(sorted(prefixes))}"
        )
    ((prefix, layers),) = prefixes.items()
    for number, parts in layers.items():
        layout = _MERGED if "gate_up_proj" in parts else _SPLIT
        if parts.keys() != layout:
            some_file = next(iter(parts.values())).file
            missing = sorted(layout - parts.keys())
            problem = f"lacks {', '.join(missing)}" if missing else "mixes two layouts"
            raise CheckpointError(
                f"{some_file}: {prefix}layers.{number}.mlp {problem}; "
                f"it has {', '.join(sorted(parts))}"
            )
    return layers


def _checked_shape(
    layers: Mapping[int, Mapping[str, _Tensor]], config: MlpConfig, config_file: Path
) -> MlpShape:
    """The shape all layers share, in agreement with the config where it gives widths."""
    first = layers[min(layers)]["down_proj"]
    hidden = config.hidden or first.shape[0]
    intermediate = config.intermediate or first.shape[1]
    why = f"H={hidden}, I={intermediate} as in "
    why += config_file.name if config.hidden or config.intermediate else f"{first.name!r}"
    for _, parts in sorted(layers.items()):
        parts["down_proj"].expect((hidden, intermediate), why)
        for part in ("gate_proj", "up_proj"):
            if part in parts:
                parts[part].expect((intermediate, hidden), why)
        if "gate_up_proj" in parts:
            parts["gate_up_proj"].expect((2 * intermediate, hidden), why)
    try:
        return MlpShape(hidden, intermediate)
    except ValueError as error:
        raise CheckpointError(f"{config_file}: {error}") from error


def _identity(files: list[Path], config: MlpConfig) -> str:
    """Changes when a file is replaced or rewritten; equal for two openings of the same files."""
    digest = hashlib.sha256(config.activation.encode())
    for file in files:
        state = file.stat()
        digest.update(f"\0{file.resolve()}\0{state.st_size}\0{state.st_mtime_ns}".encode())
    return f"checkpoint:{digest.hexdigest()}"


def _copy_into(target: torch.Tensor, source: _Tensor) -> None:
    values = source.read()
    target.copy_(values)
    if target.dtype == torch.float16 and values.dtype != torch.float16:
        for start in range(0, target.shape[0], _FINITE_CHECK_ROWS):
            if not torch.isfinite(target[start : start + _FINITE_CHECK_ROWS]).all():
                raise CheckpointError(
                    f"{source.file}: tensor {source.name!r} ({source.kind}) has values that do "
                    "not fit fp16; use bf16 or fp32"
                )
