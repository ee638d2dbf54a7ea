"""Loads the per-column constants of an elementwise model: once, in its dtype, on its device."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError, safe_open

from gatefuse.config import ConfigError, ModelConfig, Vector, VectorFile, vector_columns
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
    try:
        vector_columns(vector)  # again: the file may have changed since the configuration was read
        with safe_open(str(vector.file), framework="pt", device="cpu") as file:
            tensor: torch.Tensor = file.get_tensor(vector.tensor)
            return tensor
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from error
