"""Which rows are sent, and the safetensors reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from gatefuse.commands.loadtest.sources import MAX_PROBES, draw_requests, file_tables, random_tables
from gatefuse.commands.loadtest.tensors import TensorFile

TRUTH = Path(__file__).resolve().parents[4] / "tiny-llama" / "hidden_states.safetensors"


def _write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str
)
def test_tensors_are_what_safetensors_wrote(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.arange(6).reshape(2, 3).to(dtype), "b": torch.tensor([7]).to(dtype)}
    save_file(tensors, tmp_path / "file", metadata={"format": "pt"})
    file = TensorFile(tmp_path / "file")
    assert set(file) == {"a", "b"}
    assert len(file) == 2
    for name, tensor in tensors.items():
        expected = tensor.float() if dtype is torch.bfloat16 else tensor
        np.testing.assert_array_equal(file[name], expected.numpy(), strict=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"12345678", (2**40).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"],
    ids=["empty", "too long", "huge", "no object"],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not\.safetensors is not a safetensors file"):
        TensorFile(path)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("F8_E4M3", [8]), ("F32", [3])], ids=["dtype", "size"]
)
def test_unreadable_tensor_is_named(tmp_path: Path, dtype: str, shape: list[int]) -> None:
    header = {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, 8]}}
    file = TensorFile(_write(tmp_path / "file", header, bytes(8)))
    with pytest.raises(ValueError, match="tensor 'x' cannot be read as"):
        file["x"]


def test_truth_has_inputs_and_answers_for_every_layer() -> None:
    tables = file_tables(TRUTH, exact=True, layers=None)
    assert [table.layer for table in tables] == [0, 1, 2, 3]
    for table in tables:
        assert table.exact is not None
        assert table.inputs.dtype == np.float32
        assert table.exact.dtype == np.float64
        assert table.inputs.shape == table.exact.shape
    chosen = file_tables(TRUTH, exact=True, layers=[2])
    np.testing.assert_array_equal(chosen[0].inputs, tables[2].inputs)


def test_inputs_alone_are_as_many_as_can_be_probed() -> None:
    tables = file_tables(TRUTH, exact=False, layers=None)
    assert all(table.exact is None for table in tables)
    assert sum(len(table.inputs) for table in tables) <= MAX_PROBES


def test_missing_layers_and_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no rows for layers \[7\]"):
        file_tables(TRUTH, exact=True, layers=[1, 7])
    save_file({"layer.0.input": torch.zeros(2, 3)}, tmp_path / "only")
    with pytest.raises(ValueError, match=r"only has no tensor 'layer\.0\.output_f64'"):
        file_tables(tmp_path / "only", exact=True, layers=None)
    save_file({"layer.0.input": torch.zeros(3)}, tmp_path / "flat")
    with pytest.raises(ValueError, match=r"shape \[3\], not \[rows, columns\]"):
        file_tables(tmp_path / "flat", exact=False, layers=None)
    save_file({"other": torch.zeros(3)}, tmp_path / "none")
    with pytest.raises(ValueError, match="no rows for layers at all"):
        file_tables(tmp_path / "none", exact=False, layers=None)
    unequal = {"layer.0.input": torch.zeros(2, 3), "layer.0.output_f64": torch.zeros(2, 4)}
    save_file(unequal, tmp_path / "unequal")
    with pytest.raises(ValueError, match="layer 0 has inputs"):
        file_tables(tmp_path / "unequal", exact=True, layers=None)


def test_random_rows_differ_and_repeat() -> None:
    tables = random_tables(16, [0, 1], seed=5)
    assert not np.array_equal(tables[0].inputs, tables[1].inputs)
    np.testing.assert_array_equal(tables[1].inputs, random_tables(16, [0, 1], seed=5)[1].inputs)
    assert [table.layer for table in random_tables(4, [None], seed=0)] == [None]


def test_draws_cover_the_layers_and_hold_no_row_twice() -> None:
    tables = random_tables(4, [0, 1, 2], seed=0)
    draws = draw_requests(tables, 16, 30, seed=0)
    assert [draw.table for draw in draws[:4]] == [0, 1, 2, 0]
    for draw in draws:
        assert len(np.unique(draw.indices)) == 16
    assert _rows_of(draws[0].indices) != _rows_of(draws[3].indices)


def test_draws_repeat_rows_only_if_they_must() -> None:
    tables = random_tables(4, [0], seed=0)
    available = len(tables[0].inputs)
    draw = draw_requests(tables, available + 1, 1, seed=0)[0]
    assert len(draw.indices) == available + 1
    assert draw.indices.max() < available


def _rows_of(indices: NDArray[np.intp]) -> list[int]:
    rows: list[int] = indices.tolist()
    return rows
