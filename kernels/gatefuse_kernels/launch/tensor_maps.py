"""Matrices that the copy engine (TMA) reads, each described to it once.

Triton's launcher makes a tensor map (a CUtensorMap) of each descriptor at each launch, which is some 5 us
of the host's time. The map says where a matrix lies, its shape and its tile: a kernel whose tile is fixed
needs a new one only for a place or a shape it has not seen. Weights never move, and PyTorch's allocator
hands out the same few places again and again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

_MOST_MAPS = 4096
"""Of one kernel, some 300 bytes each; then it forgets them all."""


class TiledMatrix(NamedTuple):
    """A contiguous matrix that a kernel reads tile by tile; what lies outside reads as zero.

    The matrix starts on 16 bytes, its rows are multiples of 16 bytes, and it is not empty.

    Attributes:
        matrix: or several of one shape, stacked.
        tile: elements of a tile along each dimension.
        layout: of a tile in shared memory, which kernels in Gluon are told; Triton's choose their own.
    """

    matrix: torch.Tensor
    tile: tuple[int, ...]
    layout: object = None

    def descriptor(self) -> TensorDescriptor | GluonDescriptor:
        """As Triton takes it."""
        where = self.matrix, list(self.matrix.shape), list(self.matrix.stride()), list(self.tile)
        return (
            TensorDescriptor(*where)
            if self.layout is None
            else GluonDescriptor(*where, self.layout)
        )


def described(arguments: Iterable[object]) -> list[object]:
    """A launch's arguments as Triton takes them."""
    return [each.descriptor() if type(each) is TiledMatrix else each for each in arguments]


class TensorMaps:
    """What one compiled kernel is given for its matrices: a map of each place and shape."""

    def __init__(
        self,
        encode: Callable[[TensorDescriptor | GluonDescriptor, Any], list[object]],
        forms: Sequence[Any],
    ) -> None:
        """Hold none yet.

        Args:
            encode: Triton's, from a descriptor and its form to what the kernel is given.
            forms: Triton's, one for each of the kernel's descriptors in order.
        """
        self._encode = encode
        self._forms = forms
        self._held: dict[tuple[int, int, torch.Size], list[object]] = {}
        self._places: tuple[tuple[int, int], ...] = ()

    def expand(self, arguments: Sequence[object]) -> list[object]:
        """Put what the kernel is given in the place of each matrix; matrices are always at the same places."""
        if not self._places:
            places = [i for i, each in enumerate(arguments) if type(each) is TiledMatrix]
            # From the last on, so that what is put in moves no place that is still to come.
            self._places = tuple(reversed([*enumerate(places)]))
        given = list(arguments)
        for number, place in self._places:
            given[place : place + 1] = self._map(number, cast(TiledMatrix, arguments[place]))
        return given

    def _map(self, number: int, tiled: TiledMatrix) -> list[object]:
        matrix = tiled.matrix
        place = number, matrix.data_ptr(), matrix.shape
        found = self._held.get(place)
        if found is None:
            if len(self._held) >= _MOST_MAPS:
                self._held.clear()
            found = self._held[place] = self._encode(tiled.descriptor(), self._forms[number])
        return found
