"""The weights that a device holds: one copy, however many models ask."""

from weakref import WeakValueDictionary

import torch

from gatefuse_kernels.shapes import DType
from gatefuse_kernels.weights.packed import MlpWeights, WeightSource


class WeightStore:
    """One copy per (weights, layer, dtype) on one device, shared by every model that asks.

    It is let go with the last model that has it.
    """

    def __init__(self, device: torch.device) -> None:
        """Hold weights on `device`."""
        self.device = device
        self._held: WeakValueDictionary[tuple[str, int, DType], MlpWeights] = WeakValueDictionary()

    def get(self, source: WeightSource, layer: int, dtype: DType) -> MlpWeights:
        """The layer's weights, loaded on first use.

        Raises:
            CheckpointError: the layer does not exist or cannot be read.
        """
        key = (source.source_id, layer, dtype)
        weights = self._held.get(key)
        if weights is None:
            weights = self._held[key] = source.load(layer, dtype, self.device)
        return weights

    @property
    def nbytes(self) -> int:
        """Bytes held on the device; may be asked for while another thread loads."""
        held = [reference() for reference in self._held.valuerefs()]
        return sum(weights.nbytes for weights in held if weights is not None)
