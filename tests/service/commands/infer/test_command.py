"""`gatefuse infer`: files to rows, answers to files, and what is said when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gatefuse import cli
from gatefuse.wire import Datatype, decode, encode

BF16 = np.dtype("V2")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _infer(url: str, *arguments: str) -> int:
    return cli.main(["infer", "--url", url, *arguments])


def _save(name: str, values: np.ndarray, bf16: bool = False) -> np.ndarray:
    """Writes an array; as BF16 the way that arrays of ml_dtypes are stored."""
    if bf16:
        values = np.frombuffer(encode(values, Datatype.BF16), BF16).reshape(values.shape)
    np.save(name, values)
    return values


def _rows(rows: int = 3, columns: int = 5) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_rows_come_back_as_they_went(fake_url: str, dtype: Any) -> None:
    x = _save("x.npy", _rows().astype(dtype))
    status = _infer(fake_url, "--model", "identity", "--input", "x.npy", "--output", "y.npy")
    assert status == 0
    y = np.load("y.npy")
    assert y.dtype == (np.float32 if dtype is np.float64 else dtype)
    np.testing.assert_array_equal(y, x.astype(y.dtype))


def test_bf16_keeps_its_bits(fake_url: str) -> None:
    x = _save("x.npy", _rows(), bf16=True)
    arguments = ("--model", "identity", "--input", "x=x.npy", "--output", "output=y.npy")
    assert _infer(fake_url, *arguments) == 0
    y = np.load("y.npy")
    assert y.dtype == BF16
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_safetensors_both_ways(fake_url: str, dtype: torch.dtype) -> None:
    g, u = (torch.from_numpy(_rows(rows=2, columns=7) + n).to(dtype) for n in range(2))
    save_file({"g": g, "u": u}, "in.safetensors")
    arguments = ("--model", "gate", "--input", "in.safetensors", "--output", "out.safetensors")
    assert _infer(fake_url, *arguments) == 0
    found = load_file("out.safetensors")
    assert set(found) == {"y", "t"}
    t = 0.5 * torch.nn.functional.silu(g.double())
    for name, exact in (("t", t), ("y", t * u.double())):
        assert found[name].dtype == dtype
        assert (found[name].double() - exact).norm() < 4e-3 * exact.norm()


def test_several_files_with_names(fake_url: str) -> None:
    g, u = _save("g.npy", _rows()), _rows() + 1
    save_file({"other": torch.zeros(1), "up": torch.from_numpy(u)}, "u.safetensors")
    arguments = ["--model", "gate", "--input", "g=g.npy", "--input", "u=u.safetensors:up"]
    assert _infer(fake_url, *arguments, "--output", "t=t.npy", "--output", "y=y.npy") == 0
    np.testing.assert_allclose(np.load("y.npy"), np.load("t.npy") * u, rtol=1e-5)
    np.testing.assert_allclose(np.load("t.npy"), 0.5 * g / (1 + np.exp(-g)), rtol=1e-5)


def test_a_layer_and_the_cost_as_json(fake_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _save("x.npy", _rows(2, 256))
    arguments = ("--model", "fused", "--layer", "2", "--input", "x.npy", "--datatype", "bf16")
    assert _infer(fake_url, *arguments, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outputs"] == {"output": {"shape": [2, 256], "dtype": "float32"}}
    assert {"queue_us", "compute_us", "batch_rows", "kernel_launches", "backend"} <= told[
        "cost"
    ].keys()
    assert _infer(fake_url, *arguments) == 0
    assert "kernel_launches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--model", "none", "--input", "x.npy"], 1, "NOT_FOUND"),
        (["--model", "gate", "--input", "x.npy"], 1, "takes 2 inputs (g, u)"),
        (["--model", "identity", "--input", "absent.npy"], 66, "absent.npy"),
        (["--model", "identity", "--input", "text.npy"], 2, ""),
        (["--model", "identity", "--input", "whole.npy"], 2, "int64"),
        (["--model", "identity", "--input", "text.safetensors"], 2, "not a safetensors file"),
        (["--model", "identity", "--input", "two.safetensors:c"], 2, "no tensor 'c': it has a, b"),
        (["--model", "identity", "--input", "x=two.safetensors"], 2, "has 2 tensors"),
        (["--model", "gate", "--input", "g=x.npy", "--input", "x.npy"], 2, "has no name"),
        (["--model", "gate", "--input", "g=x.npy", "--input", "g=x.npy"], 2, "'g' is given twice"),
        (
            ["--model", "gate", "--input", "g=x.npy", "--input", "u=x.npy", "--output", "y.npy"],
            2,
            "the model has the outputs y, t",
        ),
        (
            ["--model", "identity", "--input", "x.npy", "--output", "a.npy", "--output", "b.npy"],
            2,
            "output a.npy has no name",
        ),
        (["--model", "identity", "--input", "x.npy", "--output", "no/y.npy"], 73, "no/y.npy"),
    ],
)
def test_what_goes_wrong(
    fake_url: str,
    arguments: list[str],
    status: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _save("x.npy", _rows())
    _save("whole.npy", np.arange(6).reshape(2, 3))
    for name in ("text.npy", "text.safetensors"):
        Path(name).write_text("neither of the two, and longer than a header's length")
    save_file({"a": torch.zeros(1, 1), "b": torch.zeros(1, 1)}, "two.safetensors")
    assert _infer(fake_url, *arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gatefuse: ")
    assert text in err


def test_a_server_that_is_not_there() -> None:
    _save("x.npy", _rows())
    arguments = ("--model", "identity", "--input", "x.npy", "--timeout", "0.5")
    assert _infer("127.0.0.1:1", *arguments) == 69


@pytest.mark.parametrize(
    "arguments", [["--input", "x.txt"], ["--input", "x.npy", "--timeout", "0"]]
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _infer("127.0.0.1:1", "--model", "identity", *arguments)
    assert caught.value.code == 2
    assert "usage: gatefuse infer" in capsys.readouterr().err


def test_stored_bf16_reads_as_bf16() -> None:
    stored = _save("x.npy", _rows(), bf16=True)
    read = np.load("x.npy")
    np.testing.assert_array_equal(
        decode(read.tobytes(), Datatype.BF16, read.shape),
        decode(stored.tobytes(), Datatype.BF16, stored.shape),
    )
