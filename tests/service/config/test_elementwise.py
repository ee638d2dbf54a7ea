"""Elementwise models in the configuration: expressions, outputs, and constants of every form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from gatefuse.config import ConfigError, ModelConfig, VectorFile, load_config, parse_config

CHAIN = "gelu(x) * scale + residual"
BASE = Path("/nowhere")


def _model(**keys: Any) -> ModelConfig:
    raw = {"name": "chain", "kind": "elementwise", "expression": CHAIN, **keys}
    return parse_config({"models": [raw]}, BASE).models[0]


def _error(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        _model(**keys)
    return str(caught.value)


def test_names_that_are_no_constants_are_inputs() -> None:
    assert _model().program.inputs == ("x", "scale", "residual")
    model = _model(constants={"scale": 2})
    assert model.program.inputs == ("x", "residual")
    assert model.scalars == {"scale": 2.0}
    assert model.vectors == {}


def test_a_program_of_several_lines_and_outputs() -> None:
    lines = "t = silu(g)\ny = t * u\n"
    assert _model(expression=lines).program.outputs == ("y",)
    model = _model(expression=lines, outputs=["y", "t"])
    assert (model.program.inputs, model.program.outputs) == (("g", "u"), ("y", "t"))


@pytest.mark.parametrize("backend", ["eager", "compiled", "fused", "auto"])
def test_backends(backend: str) -> None:
    assert _model(backend=backend).backend == backend


def test_constants_of_every_form(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    save_file({"bias": np.ones(3, np.float16)}, tmp_path / "v.safetensors")
    (folder / "file.yaml").write_text(
        "models:\n"
        "  - name: chain\n"
        "    kind: elementwise\n"
        "    expression: x * a + b * c - d\n"
        "    constants:\n"
        "      a: 1e-3\n"  # a text to YAML
        "      b: -2\n"
        "      c: [1, 2.5, -3]\n"
        "      d: {file: ../v.safetensors, tensor: bias}\n"
    )
    model = load_config(folder / "file.yaml").models[0]
    assert model.scalars == {"a": 0.001, "b": -2.0}
    assert model.vectors == {
        "c": (1.0, 2.5, -3.0),
        "d": VectorFile(file=tmp_path / "v.safetensors", tensor="bias"),
    }
    assert model.program.inputs == ("x",)
    assert model.program.vectors == ("c", "d")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("much", "'much' is not a number"),
        (True, "True is not a number"),
        (None, "None is not a number"),
        (float("nan"), "nan is not finite"),
        (float("inf"), "inf is not finite"),
        (10**400, "is not finite"),
        ([], "an empty list"),
        ([1, "much"], "'much' is not a number"),
        ([1, [2]], "[2] is not a number"),
        ([1, False], "False is not a number"),
        ([1, float("inf")], "inf is not finite"),
        ({"file": "v.safetensors"}, "has the keys ['file']"),
        ({"file": "v.safetensors", "tensor": "t", "row": 1}, "has the keys"),
        ({"file": None, "tensor": "t"}, "file must be a path, not None"),
        ({"file": "v.safetensors", "tensor": 3}, "tensor must be the name of a tensor, not 3"),
        ({"file": "v.safetensors", "tensor": ""}, "tensor must be the name of a tensor"),
        ({}, "has the keys []"),
    ],
    ids=str,
)
def test_a_constant_that_is_none_of_them(value: object, text: str) -> None:
    lines = _error(constants={"scale": value}).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("models.0.constants.scale: ")
    assert text in lines[0]


def test_vectors_must_have_one_length() -> None:
    vectors = {"scale": [1, 2], "residual": [1, 2, 3]}
    assert _model(constants={"scale": [1, 2]}, columns=2).columns == 2
    assert (
        "constants.scale has 2 values, but columns says 3 columns"
        in _error(constants={"scale": [1, 2]}, columns=3)
    )  # fmt: skip
    assert "constants.residual has 3 values, but constants.scale says 2" in _error(
        constants=vectors
    )


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"expression": "open(x)"}, "models.0: expression: column 1: "),
        ({"expression": "x +"}, "models.0: expression: "),
        ({"expression": "y = 2"}, "models.0: expression: "),
        ({"expression": "x * 2", "outputs": ["z"]}, "models.0: expression and outputs: "),
        ({"outputs": []}, "models.0.outputs: "),
        ({"constants": {"not a name": 2}}, "not a name"),
        (
            {"constants": {"scale": 2, "W": 3}},
            "constant 'W' is not used by the expression; its names are x, scale, residual",
        ),
        ({"constants": {False: 2}}, "models.0.constants: False is no name"),
        ({"constants": {False: 2}}, "quote the name"),
        ({"expression": "t = x; y = u", "outputs": ["y"]}, "t is never used"),
        ({"cuda_graphs": True}, "'cuda_graphs' belongs to the kinds with weights"),
        ({"columns": 0}, "models.0.columns: "),
        ({"columns": True}, "models.0.columns: "),
        ({"columns": "8"}, "models.0.columns: "),
        ({"columns": 2**20 + 1}, "models.0.columns: "),
        ({"max_columns": 2**20 + 1}, "models.0.max_columns: "),
        ({"max_columns": "8"}, "models.0.max_columns: "),
        ({"columns": 9, "max_columns": 8}, "columns says 9 columns, more than the 8"),
        (
            {"constants": {"scale": [1, 2]}, "max_columns": 1},
            "constants.scale says 2 columns, more than the 1",
        ),
        ({"constants": {"gelu": 2}}, "gelu"),
        ({"constants": {"gelu": [2, 3]}}, "gelu"),
    ],
    ids=str,
)
def test_an_expression_that_is_no_program(keys: dict[str, Any], text: str) -> None:
    assert text in _error(**keys)


@pytest.mark.parametrize(
    ("vector", "keys", "text"),
    [
        ("missing.safetensors:bias", {}, "missing.safetensors cannot be read"),
        ("text.safetensors:bias", {}, "text.safetensors cannot be read"),
        ("v.safetensors:absent", {}, "has no tensor 'absent'; it has bias, long, matrix, whole"),
        ("v.safetensors:matrix", {}, "has shape [2, 2], not [columns]"),
        ("v.safetensors:whole", {}, "holds I64; possible are F64, F32, F16, BF16"),
        ("v.safetensors:bias", {"columns": 4}, "has 3 values, but columns says 4 columns"),
    ],
)
def test_a_vector_in_a_file_is_looked_at_before_anything_starts(
    tmp_path: Path, vector: str, keys: dict[str, Any], text: str
) -> None:
    tensors: dict[str, NDArray[Any]] = {
        "bias": np.ones(3, np.float32),
        "long": np.ones(4, np.float32),
        "matrix": np.ones((2, 2), np.float32),
        "whole": np.ones(3, np.int64),
    }
    save_file(tensors, tmp_path / "v.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors here")
    file, _, tensor = vector.partition(":")
    constants = {"bias": {"file": file, "tensor": tensor}}
    raw = {"name": "m", "kind": "elementwise", "expression": "x + bias", "constants": constants}
    with pytest.raises(ConfigError) as caught:
        parse_config({"models": [{**raw, **keys}]}, tmp_path)
    assert str(caught.value).startswith("models.0: constants.bias")
    assert text in str(caught.value)


def test_vectors_of_files_must_have_one_length(tmp_path: Path) -> None:
    save_file({"a": np.ones(3), "b": np.ones(4)}, tmp_path / "v.safetensors")
    constants = {name: {"file": "v.safetensors", "tensor": name} for name in ("a", "b")}
    raw = {"name": "m", "kind": "elementwise", "expression": "x * a + b", "constants": constants}
    with pytest.raises(ConfigError, match=r"constants\.b has 4 values, but constants\.a says 3"):
        parse_config({"models": [raw]}, tmp_path)


def test_an_expression_wants_its_kind() -> None:
    with pytest.raises(ConfigError, match="'expression' belongs to kind: elementwise"):
        parse_config({"models": [{"name": "m", "expression": "x + 1"}]}, BASE)


def test_like_leaves_constants_without_a_use_behind() -> None:
    first = {
        "name": "a",
        "kind": "elementwise",
        "expression": "x * scale + shift",
        "constants": {"scale": 2, "shift": 1},
    }
    second = {"name": "b", "like": "a", "expression": "x * scale # no shift"}
    third = {"name": "c", "like": "b", "expression": "x + shift"}
    models = parse_config({"models": [first, second, third]}, BASE).models
    assert [model.scalars for model in models] == [
        {"scale": 2.0, "shift": 1.0},
        {"scale": 2.0},
        {"shift": 1.0},
    ]
    own = {**second, "constants": {"scale": 2, "shift": 1}}
    with pytest.raises(ConfigError, match=r"models\.1: .*constant 'shift' is not used"):
        parse_config({"models": [first, own]}, BASE)


def test_like_takes_the_expression_along() -> None:
    first = {"name": "a", "kind": "elementwise", "expression": CHAIN, "constants": {"scale": 2}}
    models = parse_config(
        {"models": [first, {"name": "b", "like": "a", "backend": "eager"}]}, BASE
    ).models
    assert models[0].program == models[1].program
    assert models[1].backend == "eager"
