"""Which inputs and outputs models share, and when their right answers can be computed."""

from __future__ import annotations

import json

import pytest

from gatefuse.client.metadata import ModelMetadata, TensorMetadata
from gatefuse.commands.loadtest.targets import targets_of


def _model(
    name: str,
    inputs: str = "g u",
    outputs: str = "y",
    expression: str = "",
    constants: dict[str, float | None] | None = None,
) -> ModelMetadata:
    def tensors(names: str) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(each, "FP32", (-1, -1)) for each in names.split())

    facts = {"backend": "fused", "dtype": "bf16"}
    if expression:
        facts |= {"expression": expression, "constants": json.dumps(constants or {})}
    return ModelMetadata(name, ("1",), "gatefuse", tensors(inputs), tensors(outputs), facts)


def test_all_models_get_their_inputs_in_the_first_ones_order() -> None:
    targets = targets_of([_model("a"), _model("b", "u g")], evaluated=True)
    assert [target.inputs for target in targets] == [["g", "u"], ["g", "u"]]
    assert [target.is_first for target in targets] == [True, False]


def test_a_single_tensor_may_have_a_name_of_its_own() -> None:
    targets = targets_of([_model("a", "x", "y"), _model("b", "h", "o")], evaluated=True)
    assert [(target.inputs, target.outputs) for target in targets] == [
        (["x"], ["y"]),
        (["h"], ["o"]),
    ]


@pytest.mark.parametrize(
    "other", [_model("b", "g x"), _model("b", "g"), _model("b", "g u", "y t")], ids=str
)
def test_other_tensors_do_not_go_together(other: ModelMetadata) -> None:
    with pytest.raises(ValueError, match="of b are"):
        targets_of([_model("a"), other], evaluated=False)


def test_an_expression_is_known_when_its_constants_are() -> None:
    scaled = _model("a", expression="g * u * s", constants={"s": 2.0})
    vector = _model("b", expression="g * u * s", constants={"s": None})
    (target,) = targets_of([scaled], evaluated=True)
    assert (target.expression, target.constants) == ("g * u * s", {"s": 2.0})
    assert target.program.inputs == ("g", "u")
    # One that is not known leaves the first model's answers to compare all with.
    for models in ([vector], [scaled, vector], [scaled, _model("c")]):
        assert {target.expression for target in targets_of(models, evaluated=True)} == {""}
    assert targets_of([scaled], evaluated=False)[0].expression == ""
