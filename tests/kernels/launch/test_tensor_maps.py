"""Tensor maps: made once for each place and shape, given in the place of each matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from gatefuse_kernels.launch import tensor_maps
from gatefuse_kernels.launch.tensor_maps import TensorMaps, TiledMatrix, described

_FORMS = ("form of x", "form of weight")


class Encoder:
    """Counts what is encoded, and answers with something of its own for each."""

    def __init__(self) -> None:
        self.encoded: list[tuple[int, list[int], list[int], Any]] = []

    def __call__(self, descriptor: TensorDescriptor, form: Any) -> list[object]:
        what = (descriptor.base.data_ptr(), descriptor.shape, descriptor.block_shape, form)
        self.encoded.append(what)
        return [f"map {len(self.encoded)}", *descriptor.shape]


def _matrix(rows: int, columns: int = 16) -> torch.Tensor:
    return torch.zeros(rows, columns)


def test_a_matrix_is_encoded_once_for_its_place_and_shape() -> None:
    encoder = Encoder()
    maps = TensorMaps(encoder, _FORMS)
    x, weight = _matrix(8), _matrix(32)
    tiles = TiledMatrix(x, (4, 8)), TiledMatrix(weight, (16, 8))
    assert maps.expand(["p", tiles[0], 7, tiles[1]]) == ["p", "map 2", 8, 16, 7, "map 1", 32, 16]
    assert maps.expand(["q", tiles[0], 9, tiles[1]]) == ["q", "map 2", 8, 16, 9, "map 1", 32, 16]
    assert encoder.encoded == [
        (weight.data_ptr(), [32, 16], [16, 8], _FORMS[1]),
        (x.data_ptr(), [8, 16], [4, 8], _FORMS[0]),
    ]


@pytest.mark.parametrize("changed", ["place", "rows"])
def test_another_place_or_shape_makes_another_map(changed: str) -> None:
    encoder = Encoder()
    maps = TensorMaps(encoder, _FORMS)
    base = _matrix(8)
    first = TiledMatrix(base, (4, 8))
    other = TiledMatrix({"place": _matrix(8), "rows": base[:5]}[changed], (4, 8))
    assert [maps.expand([each])[0] for each in (first, other, first)] == ["map 1", "map 2", "map 1"]


def test_each_parameter_has_maps_of_its_own() -> None:
    maps = TensorMaps(encoder := Encoder(), _FORMS)
    same = TiledMatrix(_matrix(8), (4, 8))
    maps.expand([same, same])
    assert [form for *_, form in encoder.encoded] == [*reversed(_FORMS)]


def test_no_more_maps_are_held_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_maps, "_MOST_MAPS", 3)
    encoder = Encoder()
    maps = TensorMaps(encoder, _FORMS)
    base = _matrix(8)
    for rows in (1, 2, 3, 4, 4, 1):
        maps.expand([TiledMatrix(base[:rows], (4, 8))])
    assert len(encoder.encoded) == 5, "the fourth made room, and the first was made anew"


def test_what_triton_is_given_is_a_descriptor_of_the_matrix() -> None:
    x = _matrix(3)
    given, number = described([TiledMatrix(x, (4, 8)), 5])
    assert isinstance(given, TensorDescriptor)
    assert number == 5
    assert (given.base, given.shape, given.strides) == (x, [3, 16], [16, 1])
    assert given.block_shape == [4, 8]


def test_a_matrix_for_gluon_is_described_with_its_layout() -> None:
    stacked = torch.zeros(2, 32, 64, dtype=torch.bfloat16)
    layout = gl.NVMMASharedLayout.get_default_for([2, 16, 64], gl.bfloat16)
    [given] = described([TiledMatrix(stacked, (2, 16, 64), layout)])
    assert isinstance(given, GluonDescriptor)
    assert (given.base is stacked, given.layout) == (True, layout)
    assert (given.shape, given.strides) == ([2, 32, 64], [2048, 64, 1])
    assert given.block_shape == [2, 16, 64]
