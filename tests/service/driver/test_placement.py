"""Which worker serves which models."""

from __future__ import annotations

import pytest

from gatefuse.config import ModelConfig, RandomWeights
from gatefuse.driver.placement import place


def _model(name: str, seed: int, replicas: int = 1) -> ModelConfig:
    weights = RandomWeights(hidden=8, intermediate=16, seed=seed)
    return ModelConfig(name=name, random=weights, replicas=replicas)


def _names(placed: list[list[ModelConfig]]) -> list[list[str]]:
    return [[model.name for model in models] for models in placed]


def test_models_of_the_same_weights_share_a_worker() -> None:
    models = [_model("a", 1), _model("a-eager", 1), _model("b", 2), _model("b-eager", 2)]
    assert _names(place(models, 2)) == [["a", "a-eager"], ["b", "b-eager"]]


def test_each_model_gets_its_replicas() -> None:
    models = [_model("a", 1, replicas=3), _model("b", 2, replicas=2), _model("c", 3)]
    placed = place(models, 3)
    assert _names(placed) == [["a", "b"], ["a", "b"], ["a", "c"]]


def test_fewer_replicas_of_shared_weights_use_the_same_workers() -> None:
    models = [_model("a", 1, replicas=2), _model("a-eager", 1, replicas=1)]
    assert _names(place(models, 2)) == [["a", "a-eager"], ["a"]]


def test_elementwise_models_have_no_weights_to_share() -> None:
    models = [ModelConfig(name=name, kind="elementwise", expression="x * 2") for name in ("a", "b")]
    assert _names(place(models, 2)) == [["a"], ["b"]]


def test_a_worker_without_a_model_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"no model is left for worker 1, 2: raise 'replicas'"):
        place([_model("a", 1)], 3)
