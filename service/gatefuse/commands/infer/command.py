"""`gatefuse infer`: rows from files to a running server, answers to files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import grpc

from gatefuse.client.blocking import Client
from gatefuse.client.messages import InferenceError, Result
from gatefuse.client.transport.retry import SHORT_RETRY
from gatefuse.commands.conventions import (
    EXIT_CANNOT_WRITE,
    EXIT_NO_INPUT,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    EXIT_WRONG,
)
from gatefuse.commands.infer import tensor_files
from gatefuse.commands.infer.options import Named
from gatefuse.commands.infer.tensor_files import Tensor
from gatefuse.commands.text_table import text_table


class UsageError(ValueError):
    """Arguments that do not go together, or not with the files."""


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    outputs: list[Named] = options.output or []
    try:
        inputs = _inputs(options.input)
        _check_outputs(outputs)
    except (OSError, EOFError) as error:
        return _fail(str(error), EXIT_NO_INPUT)
    except ValueError as error:
        return _fail(str(error), EXIT_USAGE)
    try:
        result = _infer(options, inputs, _wanted(outputs))
    except (TypeError, ValueError) as error:
        return _fail(str(error), EXIT_USAGE)
    except InferenceError as error:
        return _fail(f"{options.url}: {error}", exit_status(error))
    is_bf16 = all(tensor.is_bf16 for tensor in inputs.values())
    answers = {name: Tensor(values, is_bf16) for name, values in result.outputs.items()}
    try:
        _write(outputs, answers)
    except UsageError as error:
        return _fail(str(error), EXIT_USAGE)
    except OSError as error:
        return _fail(str(error), EXIT_CANNOT_WRITE)
    _print(result, is_bf16, options.json)
    return 0


def exit_status(error: InferenceError) -> int:
    """The status of a command whose call was not answered: EX_UNAVAILABLE where asking again may help."""
    return EXIT_UNAVAILABLE if error.code is grpc.StatusCode.UNAVAILABLE else EXIT_WRONG


def _infer(
    options: argparse.Namespace, inputs: Mapping[str, Tensor], wanted: Sequence[str] | None
) -> Result:
    arrays = {name: tensor.values for name, tensor in inputs.items()}
    datatype = options.datatype
    if datatype is None and all(tensor.is_bf16 for tensor in inputs.values()):
        datatype = "BF16"
    parameters = {} if options.priority is None else {"priority": options.priority}
    with Client(options.url, timeout_s=options.timeout, retry=SHORT_RETRY) as client:
        return client.infer(
            options.model,
            arrays.get("", arrays),
            outputs=wanted,
            layer=options.layer,
            datatype=datatype,
            parameters=parameters,
        )


def _inputs(given: Sequence[Named]) -> dict[str, Tensor]:
    """The inputs by the model's names; "" is the only one of a model, whatever its name is there."""
    inputs: dict[str, Tensor] = {}
    for name, path, tensor in given:
        found = tensor_files.read(path)
        if tensor and tensor not in found:
            raise UsageError(f"{path} has no tensor {tensor!r}: it has {', '.join(found)}")
        if tensor:
            found = {name: found[tensor]}
        elif name or len(found) == 1 == len(given):
            if len(found) != 1:
                raise UsageError(f"{path} has {len(found)} tensors: name one, as in {path}:TENSOR")
            found = {name: next(iter(found.values()))}
        if twice := found.keys() & inputs.keys():
            named = ", ".join(map(repr, sorted(twice)))
            raise UsageError(f"input {named} is given twice: name each, as in NAME={path}")
        inputs |= found
    if not inputs:
        raise UsageError("the files have no tensors")
    if "" in inputs and len(inputs) > 1:
        raise UsageError("an input has no name: with several, give each as NAME=FILE")
    return inputs


def _check_outputs(outputs: Sequence[Named]) -> None:
    unnamed = [output for output in outputs if not output.name]
    if unnamed and len(outputs) > 1:
        raise UsageError(
            f"output {unnamed[0].path} has no name: with several, give each as NAME=FILE"
        )
    if len({output.path for output in outputs}) < len(outputs):
        raise UsageError("two outputs go to one file")
    if len({output.name for output in outputs}) < len(outputs):
        raise UsageError("an output is named twice")


def _wanted(outputs: Sequence[Named]) -> list[str] | None:
    names = [output.name for output in outputs if output.name]
    return names or None


def _write(outputs: Sequence[Named], answers: Mapping[str, Tensor]) -> None:
    for name, path, tensor in outputs:
        if name:
            tensor_files.write(path, {tensor or name: answers[name]})
        elif len(answers) == 1:
            ((only, values),) = answers.items()
            tensor_files.write(path, {tensor or only: values})
        elif path.suffix == ".npy" or tensor:
            names = ", ".join(answers)
            raise UsageError(f"the model has the outputs {names}: name one, as in NAME={path}")
        else:
            tensor_files.write(path, answers)


def _print(result: Result, is_bf16: bool, as_json: bool) -> None:
    outputs = {
        name: {"shape": list(array.shape), "dtype": "bfloat16" if is_bf16 else array.dtype.name}
        for name, array in result.outputs.items()
    }
    cost = asdict(result.cost)
    if as_json:
        print(json.dumps({"outputs": outputs, "cost": cost}, indent=2))
        return
    shapes = [(name, str(each["shape"]), str(each["dtype"])) for name, each in outputs.items()]
    print(text_table([("output", "shape", "dtype"), *shapes]), end="\n\n")
    print(text_table([("cost", ""), *((key, str(value)) for key, value in cost.items())]))


def _fail(text: str, status: int) -> int:
    print(f"gatefuse: {text}", file=sys.stderr)
    return status
