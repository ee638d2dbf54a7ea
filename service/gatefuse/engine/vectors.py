"""Loads the per-column constants of an elementwise model: once, in its dtype, on its device."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError, safe_open

from gatefuse.config import ConfigError, ModelConfig, Vector, VectorFile
from gatefuse_kernels import dtypes


def load_vectors(config: ModelConfig, device: torch.device) -> dict[str, torch.Tensor]:
    """The model's vectors, each [C] of the model's dtype on `device`.

    Raises:
        ConfigError: a file or tensor cannot be read or is no vector of floats, or has values that do not fit the
            dtype; names the key.
    """
    dtype = dtypes.to_torch(config.dtype)
    loaded = {}
    for name, vector in config.vectors.items():
        key = f"model '{config.name}': constants.{name}"
        values = _load(key, vector)
        loaded[name] = values.to(device, dtype)
        if not torch.equal(loaded[name].isfinite().cpu(), values.isfinite()):
            raise ConfigError(f"{key} has values that do not fit {config.dtype}")
    return loaded


def fixed_columns(config: ModelConfig, vectors: Mapping[str, torch.Tensor]) -> int | None:
    """The only width that the model's rows can have; None for any.

    Raises:
        ConfigError: vectors and `columns` do not all have one length.
    """
    columns, fixed_by = config.columns, "columns"
    for name, vector in vectors.items():
        if columns not in (None, len(vector)):
            raise ConfigError(
                f"model '{config.name}': constants.{name} has {len(vector)} values, but {fixed_by} "
                f"says {columns} columns"
            )
        columns, fixed_by = len(vector), f"constants.{name}"
    return columns


def _load(key: str, vector: Vector) -> torch.Tensor:
    if not isinstance(vector, VectorFile):
        return torch.tensor(vector, dtype=torch.float64)
    tensor = _read(key, vector)
    if not tensor.is_floating_point():
        raise ConfigError(f"{key}: tensor '{vector.tensor}' of {vector.file} holds {tensor.dtype}")
    if tensor.dim() != 1 or not len(tensor):
        raise ConfigError(
            f"{key}: tensor '{vector.tensor}' of {vector.file} has shape {list(tensor.shape)}, not "
            "[columns]"
        )
    return tensor


def _read(key: str, vector: VectorFile) -> torch.Tensor:
    try:
        with safe_open(str(vector.file), framework="pt", device="cpu") as file:
            names = sorted(file.keys())
            if vector.tensor not in names:
                raise ConfigError(
                    f"{key}: {vector.file} has no tensor '{vector.tensor}'; it has {_listed(names)}"
                )
            tensor: torch.Tensor = file.get_tensor(vector.tensor)
            return tensor
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{key}: {vector.file} cannot be read: {error}") from error


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
