"""Tuning without a GPU: what is done between the measurements."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from gatefuse_kernels.plan import KNOWN_DEVICES
from gatefuse_kernels.shapes import DType, MlpShape
from gatefuse_kernels.tuning import run as tuning
from gatefuse_kernels.tuning.stopwatch import NoMemoryError


def test_too_little_memory_is_told_with_the_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopwatch(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has few.")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(tuning, "profile_of", lambda device: KNOWN_DEVICES["nvidia-h200"])
    monkeypatch.setattr(tuning, "GpuStopwatch", stopwatch)
    options = tuning.TuneOptions(
        (MlpShape(64, 96),), DType.BF16, (1,), tmp_path / "table.json", 0, ("tune",)
    )
    with pytest.raises(NoMemoryError, match=r"^64x96 bf16: CUDA out .* allocate 9 GiB$"):
        tuning.tune(options, lambda text: None)


def test_a_stopwatch_is_gone_before_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights fill the device, and no collector needs to run for them to be freed."""
    made: list[weakref.ref[Stopwatch]] = []

    class Stopwatch:
        def __init__(self, *_: object) -> None:
            assert all(other() is None for other in made)
            made.append(weakref.ref(self))

    class Search:
        def __init__(self, *given: object) -> None:
            self.given = given

        def run(self, *_: object) -> None:
            assert any(isinstance(each, Stopwatch) for each in self.given)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(tuning, "profile_of", lambda device: KNOWN_DEVICES["nvidia-h200"])
    monkeypatch.setattr(tuning, "GpuStopwatch", Stopwatch)
    monkeypatch.setattr(tuning, "Search", Search)
    shapes = (MlpShape(64, 96), MlpShape(64, 128), MlpShape(64, 160))
    options = tuning.TuneOptions(shapes, DType.BF16, (1,), tmp_path / "table.json", 0, ("tune",))
    gc.disable()
    try:
        tuning.tune(options, lambda text: None)
    finally:
        gc.enable()
    assert len(made) == len(shapes)
