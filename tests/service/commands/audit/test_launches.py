"""Launches as the metrics endpoint tells them."""

from __future__ import annotations

from collections import Counter

import pytest

from gatefuse.client.metadata import ModelMetadata, TensorMetadata
from gatefuse.commands.audit.launches import _inputs, exported

TEXT = """\
# HELP gatefuse_kernel_launches_total Kernels executed on the device.
# TYPE gatefuse_kernel_launches_total counter
gatefuse_kernel_launches_total{backend="fused",kernel="swiglu_down",mode="graph",model="ffn"} 12.0
gatefuse_kernel_launches_total{backend="fused",kernel="swiglu_down",mode="eager",model="ffn"} 3.0
gatefuse_kernel_launches_total{backend="fused",kernel="swiglu_gate_up",mode="graph",model="ffn"} 1e+03
gatefuse_kernel_launches_total{backend="eager",kernel="eager_down",mode="graph",model="ffn-eager"} 7.0
gatefuse_kernel_launches_created{backend="fused",kernel="swiglu_down",mode="graph",model="ffn"} 1.7e+09
gatefuse_graph_replays_total{backend="fused",bucket="16",model="ffn"} 4.0
"""


def test_one_models_launches_by_kernel() -> None:
    found = exported(TEXT, "gatefuse_kernel_launches_total", "ffn", "kernel")
    assert found == Counter(swiglu_down=15, swiglu_gate_up=1000)


def test_replays_by_bucket() -> None:
    assert exported(TEXT, "gatefuse_graph_replays_total", "ffn", "bucket") == Counter({"16": 4})


def test_a_model_that_ran_nothing() -> None:
    assert not exported(TEXT, "gatefuse_kernel_launches_total", "other", "kernel")


@pytest.mark.parametrize(
    ("width", "most", "columns"), [(24, 24, 24), (-1, 8192, 1024), (-1, 40, 40)]
)
def test_requests_are_no_wider_than_the_model_takes(width: int, most: int, columns: int) -> None:
    tensors = tuple(TensorMetadata(name, "FP32", (-1, width)) for name in ("g", "u"))
    metadata = ModelMetadata("gate", ("1",), "gatefuse", tensors, ())
    assert {name: x.shape for name, x in _inputs(metadata, 3, most).items()} == {
        "g": (3, columns),
        "u": (3, columns),
    }
