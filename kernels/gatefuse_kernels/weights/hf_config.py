"""What a Hugging Face `config.json` says about the MLPs: activation and widths. No torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatefuse_kernels.errors import CheckpointError
from gatefuse_kernels.shapes import Activation

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_python_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
}


@dataclass(frozen=True)
class MlpConfig:
    """The parts of `config.json` that matter here; widths are None where it gives none."""

    activation: Activation
    hidden: int | None
    intermediate: int | None


def read_config(path: Path) -> MlpConfig:
    """Read `config.json`; a multimodal model's `text_config` is used where it has one.

    Raises:
        CheckpointError: the file is missing, is not a JSON object, or its activation is unknown.
    """
    config = read_json_object(path)
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {**config, **text}
    return MlpConfig(
        activation=_activation(config, path),
        hidden=_width(config, "hidden_size"),
        intermediate=_width(config, "intermediate_size"),
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file whose top level is an object.

    Raises:
        CheckpointError: it cannot be read or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return content


def _activation(config: dict[str, Any], path: Path) -> Activation:
    model_type = str(config.get("model_type", ""))
    # Gemma 1's released configs say "gelu" and mean the tanh form; transformers corrects it and
    # ignores hidden_activation there. Gemma 2 and later read hidden_activation only.
    if model_type == "gemma":
        name = config.get("hidden_act") or "gelu_pytorch_tanh"
        if name == "gelu":
            name = "gelu_pytorch_tanh"
    elif model_type.startswith("gemma"):
        name = config.get("hidden_activation") or "gelu_pytorch_tanh"
    else:
        name = config.get("hidden_act") or config.get("hidden_activation")
    if name is None:
        raise CheckpointError(f"{path}: neither hidden_act nor hidden_activation is given")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"{path}: activation {name!r} is not supported; known are {known}")
    return _ACTIVATIONS[name]


def _width(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    # Some models give one width per layer; the tensors themselves are checked either way.
    return value if isinstance(value, int) else None
