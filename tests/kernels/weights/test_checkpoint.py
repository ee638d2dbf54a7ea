"""Checkpoints in every layout, and the errors a bad one gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatefuse_kernels import reference
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.weights.checkpoint import CheckpointError, open_checkpoint

CPU = torch.device("cpu")
TINY_LLAMA = Path(__file__).parents[3] / "tiny-llama"
HIDDEN, INTERMEDIATE = 12, 20


def split_tensors(layers: int = 2, prefix: str = "model.") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {f"{prefix}embed_tokens.weight": torch.zeros(3, HIDDEN)}
    for layer in range(layers):
        for part, shape in (
            ("gate_proj", (INTERMEDIATE, HIDDEN)),
            ("up_proj", (INTERMEDIATE, HIDDEN)),
            ("down_proj", (HIDDEN, INTERMEDIATE)),
        ):
            name = f"{prefix}layers.{layer}.mlp.{part}.weight"
            tensors[name] = torch.randn(shape, generator=generator)
    return tensors


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """A single-file checkpoint; `config` overrides a silu-gated Llama's."""
    save_file(split_tensors() if tensors is None else tensors, folder / "model.safetensors")
    settings = {"model_type": "llama", "hidden_act": "silu"} | config
    settings = {key: value for key, value in settings.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def write_sharded(folder: Path) -> Path:
    """Layer 0 in one shard, layer 1 in another."""
    write(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: f"part-{int('layers.1' in name)}.safetensors" for name in tensors}
    for shard in set(names.values()):
        part = {name: tensor for name, tensor in tensors.items() if names[name] == shard}
        save_file(part, folder / shard)
    write_index(folder, names)
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def read_index(folder: Path) -> dict[str, str]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    weight_map: dict[str, str] = index["weight_map"]
    return weight_map


def test_tiny_llama_gives_the_exact_answers() -> None:
    source = open_checkpoint(TINY_LLAMA)
    assert source.layers == (0, 1, 2, 3)
    assert source.shape == MlpShape(256, 688)
    assert source.activation is Activation.SILU
    states = load_file(TINY_LLAMA / "hidden_states.safetensors")
    for layer in source.layers:
        weights = source.load(layer, DType.BF16, CPU)
        truth = reference.mlp_reference(states[f"layer.{layer}.input"], weights)
        assert reference.relative_error(truth, states[f"layer.{layer}.output_f64"]) < 1e-12


def transformers_mlp(family: str, config: dict[str, Any]) -> torch.nn.Module:
    """Transformers' own MLP of a family, built from the same config file."""
    import transformers
    from transformers.models.gemma import modeling_gemma
    from transformers.models.gemma2 import modeling_gemma2
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral
    from transformers.models.phi3 import modeling_phi3
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3

    widths = {"hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE}
    widths |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    modules: dict[str, tuple[Any, Any]] = {
        "llama": (modeling_llama.LlamaMLP, transformers.LlamaConfig),
        "mistral": (modeling_mistral.MistralMLP, transformers.MistralConfig),
        "qwen2": (modeling_qwen2.Qwen2MLP, transformers.Qwen2Config),
        "qwen3": (modeling_qwen3.Qwen3MLP, transformers.Qwen3Config),
        "phi3": (modeling_phi3.Phi3MLP, transformers.Phi3Config),
        "gemma": (modeling_gemma.GemmaMLP, transformers.GemmaConfig),
        "gemma2": (modeling_gemma2.Gemma2MLP, transformers.Gemma2Config),
    }
    mlp_class, config_class = modules[family]
    extra = {"pad_token_id": 0} if family == "phi3" else {}
    module: torch.nn.Module = mlp_class(config_class(**widths, **config, **extra))
    return module


@pytest.mark.parametrize(
    ("family", "config", "activation"),
    [
        ("llama", {"hidden_act": "silu"}, Activation.SILU),
        ("mistral", {"hidden_act": "silu"}, Activation.SILU),
        ("qwen2", {"hidden_act": "silu"}, Activation.SILU),
        ("qwen3", {"hidden_act": "silu"}, Activation.SILU),
        ("llama", {"hidden_act": "gelu"}, Activation.GELU),
        ("llama", {"hidden_act": "gelu_new"}, Activation.GELU_TANH),
        ("llama", {"hidden_act": "relu"}, Activation.RELU),
        ("phi3", {"hidden_act": "silu"}, Activation.SILU),
        # Gemma 1's released configs say "gelu" and mean the tanh form, whatever else they say.
        ("gemma", {"hidden_act": "gelu"}, Activation.GELU_TANH),
        ("gemma", {}, Activation.GELU_TANH),
        ("gemma2", {"hidden_activation": "gelu_pytorch_tanh"}, Activation.GELU_TANH),
        ("gemma2", {"hidden_activation": "gelu", "hidden_act": "silu"}, Activation.GELU),
    ],
)
def test_layouts_agree_with_transformers(
    tmp_path: Path, family: str, config: dict[str, Any], activation: Activation
) -> None:
    module = transformers_mlp(family, config)
    tensors = {
        f"model.layers.3.mlp.{name}": value.clone() for name, value in module.state_dict().items()
    }
    settings = {"hidden_act": None, "model_type": family} | config
    source = open_checkpoint(write(tmp_path, tensors, **settings))
    assert source.layers == (3,)
    assert source.activation is activation
    weights = source.load(3, DType.FP32, CPU)
    x = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(2)) * 3
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(reference.eager_mlp(x, weights), expected)


def test_any_prefix_and_a_single_file_path(tmp_path: Path) -> None:
    write(tmp_path, split_tensors(prefix="language_model.model."))
    assert open_checkpoint(tmp_path / "model.safetensors").layers == (0, 1)


def test_a_multimodal_config_is_read_from_its_text_part(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh"}
    write(tmp_path, model_type="gemma3", hidden_act=None, text_config=text)
    assert open_checkpoint(tmp_path).activation is Activation.GELU_TANH


def test_sharded_equals_single(tmp_path: Path) -> None:
    single, sharded = tmp_path / "single", tmp_path / "sharded"
    single.mkdir()
    sharded.mkdir()
    one, other = open_checkpoint(write(single)), open_checkpoint(write_sharded(sharded))
    for layer in one.layers:
        left, right = (source.load(layer, DType.FP32, CPU) for source in (one, other))
        assert torch.equal(left.gate_up, right.gate_up)
        assert torch.equal(left.down, right.down)


@pytest.mark.parametrize("dtype", DType)
def test_values_are_rounded_once(tmp_path: Path, dtype: DType) -> None:
    tensors = {name: tensor.double() / 3 for name, tensor in split_tensors().items()}
    weights = open_checkpoint(write(tmp_path, tensors)).load(1, dtype, CPU)
    gate = tensors["model.layers.1.mlp.gate_proj.weight"]
    assert torch.equal(weights.gate, gate.to(weights.gate.dtype))
    assert weights.dtype is dtype
    assert weights.nbytes == 3 * HIDDEN * INTERMEDIATE * dtype.itemsize
    assert weights.gate.is_contiguous()
    assert weights.up.is_contiguous()


def test_a_value_beyond_fp16_is_refused(tmp_path: Path) -> None:
    tensors = split_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = 70000.0
    source = open_checkpoint(write(tmp_path, tensors))
    source.load(1, DType.BF16, CPU)
    with pytest.raises(CheckpointError, match=r"up_proj.*fp16"):
        source.load(1, DType.FP16, CPU)


def test_identity_follows_the_files(tmp_path: Path) -> None:
    first = open_checkpoint(write(tmp_path)).source_id
    assert open_checkpoint(tmp_path).source_id == first
    tensors = split_tensors(layers=3)
    assert open_checkpoint(write(tmp_path, tensors)).source_id != first
    assert open_checkpoint(write(tmp_path, tensors, hidden_act="gelu")).source_id != first


def replaced(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    tensors = split_tensors()
    full_name = f"model.layers.1.mlp.{name}"
    if tensor is None:
        del tensors[full_name]
    else:
        tensors[full_name] = tensor
    return tensors


@pytest.mark.parametrize(
    ("tensors", "pattern"),
    [
        (replaced("up_proj.weight", None), r"model\.safetensors: model\.layers\.1\.mlp lacks up"),
        (
            replaced("up_proj.weight", torch.zeros(INTERMEDIATE, HIDDEN + 1)),
            r"model\.safetensors: tensor '.*1\.mlp\.up_proj.*' has shape \[20, 13\], "
            r"expected \[20, 12\]",
        ),
        (
            replaced("down_proj.weight", torch.zeros(INTERMEDIATE, HIDDEN)),
            r"down_proj.*\[20, 12\], expected \[12, 20\]",
        ),
        (replaced("down_proj.weight", torch.zeros(HIDDEN)), r"down_proj.*\[12\].*two dimensions"),
        (replaced("down_proj.bias", torch.zeros(HIDDEN)), r"down_proj\.bias.*bias is not supp"),
        (
            replaced(
                "gate_proj.weight",
                torch.zeros(INTERMEDIATE, HIDDEN).to(torch.float8_e4m3fn),
            ),
            r"gate_proj.*F8_E4M3.*quantized",
        ),
        (
            replaced("gate_proj.weight", torch.zeros(INTERMEDIATE, HIDDEN, dtype=torch.int8)),
            r"gate_proj.*I8.*quantized",
        ),
        (
            replaced("gate_up_proj.weight", torch.zeros(2 * INTERMEDIATE, HIDDEN)),
            "mixes two layouts",
        ),
        ({"model.embed.weight": torch.zeros(2, 2)}, "no tensor is named like"),
        (
            split_tensors(prefix="a.") | split_tensors(prefix="b."),
            r"several prefixes: a\., b\.",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value)[:30],
)
def test_bad_tensors_are_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor], pattern: str
) -> None:
    with pytest.raises(CheckpointError, match=pattern):
        open_checkpoint(write(tmp_path, tensors))


def test_widths_of_the_config_are_held_against_the_tensors(tmp_path: Path) -> None:
    write(tmp_path, hidden_size=16, intermediate_size=INTERMEDIATE)
    with pytest.raises(CheckpointError, match=r"\[12, 20\], expected \[16, 20\].*config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = write(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: corrupt or truncated"):
        open_checkpoint(tmp_path)


def test_a_corrupt_header_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = b"\xff" * 32
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="corrupt"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (write_sharded(tmp_path) / "part-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"part-1\.safetensors: the shard is missing"):
        open_checkpoint(tmp_path)


def test_a_tensor_the_index_misplaces_is_named(tmp_path: Path) -> None:
    weight_map = read_index(write_sharded(tmp_path))
    weight_map["model.layers.1.mlp.up_proj.weight"] = "part-0.safetensors"
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=r"part-0\.safetensors: lacks tensor.*1\.mlp\.up"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "a\\x.safetensors", "x.bin", 3],
)
def test_an_index_cannot_leave_its_folder(tmp_path: Path, name: object) -> None:
    weight_map: dict[str, object] = dict(read_index(write_sharded(tmp_path)))
    weight_map["model.embed_tokens.weight"] = name
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=r"index\.json.*plain"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ("{", r"config\.json: not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"hidden_act": "relu6"}', "'relu6' is not supported"),
        ('{"hidden_act": 3}', "3 is not supported"),
        ('{"model_type": "llama"}', "neither hidden_act nor"),
        (None, r"config\.json: cannot be read"),
    ],
)
def test_bad_configs(tmp_path: Path, config: str | None, pattern: str) -> None:
    file = write(tmp_path) / "config.json"
    if config is None:
        file.unlink()
    else:
        file.write_text(config)
    with pytest.raises(CheckpointError, match=pattern):
        open_checkpoint(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has neither"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no such file or folder"):
        open_checkpoint(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="has no layer 9"):
        open_checkpoint(TINY_LLAMA).load(9, DType.BF16, CPU)
