"""Elementwise models served: named inputs, several outputs, vectors, batches shared by many, what is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tests.integration.harness import Scrape, Service, Start

from gatefuse.client.asynchronous import AioClient
from gatefuse.client.blocking import Client, InferenceError
from gatefuse.client.messages import method
from gatefuse.commands.loadtest.evaluate import evaluate
from gatefuse_kernels.expression import parse_program
from gatefuse_protos import open_inference_pb2 as pb

Array: TypeAlias = NDArray[Any]
Inputs: TypeAlias = dict[str, Array]

MAX_BATCH_ROWS = 16
VECTOR_COLUMNS = 7
SCALE = np.array([0.5, -1, 2, 0.25, 4, -0.125, 1], np.float32)
BIAS = np.linspace(-3, 3, VECTOR_COLUMNS).astype(np.float32)
# The three chains of the lessons that this project started from, and one that gives two outputs.
CHAINS = {
    "affine": "x * 2 + 3",
    "residual": "gelu(x) * 0.5 + residual",
    "gate": "t = silu(g)\ny = t * u",
    "both": "y = exp(-abs(a)); z = where(a > b, y, b)",
}
TENSORS = {"affine": 2, "residual": 3, "gate": 3, "both": 4}
OPS = {"affine": 2, "residual": 3, "gate": 2, "both": 5}


@pytest.fixture(scope="module")
def service(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Service:
    file = tmp_path_factory.mktemp("vectors") / "v.safetensors"
    save_file({"bias": torch.from_numpy(BIAS).double()}, file)
    common = {
        "kind": "elementwise",
        "dtype": "fp32",
        "max_columns": 64,
        "batching": {"max_batch_rows": MAX_BATCH_ROWS},
    }
    outputs = {"both": ["z", "y"]}
    models: list[dict[str, Any]] = [
        {
            **common,
            "name": f"{name}-{backend}",
            "expression": text,
            "backend": backend,
            **({"outputs": outputs[name]} if name in outputs else {}),
        }
        for name, text in CHAINS.items()
        for backend in ("fused", "eager")
    ]
    constants = {"scale": SCALE.tolist(), "bias": {"file": str(file), "tensor": "bias"}}
    models.append({**common, "name": "vectors", "expression": "x * scale + bias * two"})
    models[-1]["constants"] = {**constants, "two": 2}
    return start({"device": "cpu", "models": models})


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


def _program(chain: str) -> Any:
    return parse_program(CHAINS[chain], {}, outputs=["z", "y"] if chain == "both" else None)


def _inputs(chain: str, rows: int, columns: int, seed: int = 0) -> Inputs:
    generator = np.random.default_rng([rows, columns, seed])
    return {
        name: generator.standard_normal((rows, columns), np.float32)
        for name in _program(chain).inputs
    }


def _check(chain: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    program = _program(chain)
    exact = evaluate(program, {name: x.astype(np.float64) for name, x in inputs.items()})
    assert list(outputs) == list(program.outputs)
    for name, expected in zip(program.outputs, exact, strict=True):
        np.testing.assert_allclose(outputs[name], expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["fused", "eager"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 64), (3, 5), (MAX_BATCH_ROWS, 33)])
def test_a_chain_is_right(
    client: Client, chain: str, backend: str, rows: int, columns: int
) -> None:
    inputs = _inputs(chain, rows, columns)
    reversed_inputs = dict(reversed(inputs.items()))
    result = client.infer(f"{chain}-{backend}", reversed_inputs)
    _check(chain, inputs, result.outputs)
    fused = backend == "fused"
    assert result.cost.backend == backend
    assert result.cost.batch_rows == rows
    assert result.cost.kernel_launches == (1 if fused else OPS[chain])
    if fused:
        # Each input read once and each output written once.
        assert result.cost.bytes_moved == TENSORS[chain] * rows * columns * 4


@pytest.mark.parametrize("backend", ["fused", "eager"])
@pytest.mark.parametrize("chain", ["gate", "both"])
@pytest.mark.parametrize("rows", [MAX_BATCH_ROWS + 1, 5 * MAX_BATCH_ROWS - 3])
def test_a_request_above_the_largest_batch_is_cut_and_joined(
    client: Client, chain: str, backend: str, rows: int
) -> None:
    inputs = _inputs(chain, rows, 13)
    result = client.infer(f"{chain}-{backend}", inputs)
    _check(chain, inputs, result.outputs)
    assert result.cost.batch_rows == rows


@pytest.mark.parametrize(("datatype", "error"), [("FP32", 1e-6), ("FP16", 2e-3), ("BF16", 2e-2)])
def test_rows_are_converted_both_ways(client: Client, datatype: str, error: float) -> None:
    inputs = _inputs("gate", 5, 9)
    outputs = client.infer("gate-fused", inputs, datatype=datatype).outputs
    (expected,) = evaluate(
        _program("gate"), {name: x.astype(np.float64) for name, x in inputs.items()}
    )
    np.testing.assert_allclose(outputs["y"], expected, rtol=error, atol=error)


@pytest.mark.parametrize("asked", [["y"], ["z"], ["y", "z"], ["z", "y"]], ids=str)
def test_outputs_that_are_asked_for_come_in_that_order(client: Client, asked: list[str]) -> None:
    inputs = _inputs("both", 20, 3)
    whole = client.infer("both-fused", inputs).outputs
    outputs = client.infer("both-fused", inputs, outputs=asked).outputs
    assert list(outputs) == asked
    for name, output in outputs.items():
        np.testing.assert_array_equal(output, whole[name])


@pytest.mark.parametrize("rows", [1, 40])
def test_vectors_from_the_configuration_and_from_a_file(client: Client, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, VECTOR_COLUMNS)).astype(np.float32)
    expected = x.astype(np.float64) * SCALE + 2.0 * BIAS
    np.testing.assert_allclose(client.infer("vectors", x).output, expected, rtol=2e-6, atol=1e-6)
    with pytest.raises(InferenceError, match="'vectors' takes rows of 7 columns") as caught:
        client.infer("vectors", x[:, :-1])
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_what_a_model_says_of_itself(client: Client) -> None:
    both = client.model_metadata("both-fused")
    assert [(each.name, each.datatype, each.shape) for each in both.inputs] == [
        ("a", "FP32", (-1, -1)),
        ("b", "FP32", (-1, -1)),
    ]
    assert [each.name for each in both.outputs] == ["z", "y"]
    vectors = client.model_metadata("vectors")
    assert [each.shape for each in (*vectors.inputs, *vectors.outputs)] == [
        (-1, VECTOR_COLUMNS)
    ] * 2
    assert vectors.properties["expression"] == "x * scale + bias * two"
    constants = json.loads(vectors.properties["constants"])
    assert constants == {"two": 2.0, "scale": None, "bias": None}


@pytest.mark.asyncio
async def test_rows_of_many_callers_do_not_mix(service: Service) -> None:
    """Sizes, widths, chains and outputs all at once; every value tells whose it is."""
    generator = np.random.default_rng(5)
    async with AioClient(service.url) as client:

        async def call(number: int) -> None:
            chain = list(CHAINS)[number % len(CHAINS)]
            backend = ("fused", "eager")[number // 4 % 2]
            rows = int(generator.integers(1, 2 * MAX_BATCH_ROWS + 3))
            inputs = _inputs(chain, rows, (5, 5, 8)[number % 3], seed=number)
            result = await client.infer(f"{chain}-{backend}", inputs)
            _check(chain, inputs, result.outputs)

        await asyncio.gather(*map(call, range(160)))


def _refusal(service: Service, request: pb.ModelInferRequest) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(service.url) as channel:
        infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            method("ModelInfer")
        )
        with pytest.raises(grpc.RpcError) as caught:
            infer(request.SerializeToString(), timeout=30)
    error: Any = caught.value
    return error.code(), error.details()


@pytest.mark.parametrize(
    ("names", "shapes", "outputs", "text"),
    [
        (("g",), [(2, 3)], (), "input 'u' is missing"),
        (("g", "u", "w"), [(2, 3)] * 3, (), "has no input 'w': its inputs are g, u"),
        (("u", "u"), [(2, 3)] * 2, (), "input 'u' is given twice"),
        (("g", "u"), [(2, 3), (3, 2)], (), "all inputs must have one shape"),
        (("g", "u"), [(2, 3), (1, 3)], (), "all inputs must have one shape"),
        (("g", "u"), [(2, 65), (2, 65)], (), "takes 1 to 64 columns"),
        (("g", "u"), [(2, 3)] * 2, ("t",), "the only output of 'gate-fused' is 'y'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_is_told_which_rule(
    service: Service,
    names: tuple[str, ...],
    shapes: list[tuple[int, int]],
    outputs: tuple[str, ...],
    text: str,
) -> None:
    request = pb.ModelInferRequest(model_name="gate-fused")
    for name, shape in zip(names, shapes, strict=True):
        request.inputs.add(name=name, datatype="FP32", shape=shape)
        request.raw_input_contents.append(bytes(4 * shape[0] * shape[1]))
    for name in outputs:
        request.outputs.add(name=name)
    code, details = _refusal(service, request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in details


def _growth(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    return after.value(name, **labels) - before.value(name, **labels)


def test_the_counters_add_up(service: Service, client: Client) -> None:
    sizes = [(1, 5), (7, 5), (MAX_BATCH_ROWS, 8), (3 * MAX_BATCH_ROWS + 1, 3)]
    before = service.scrape_idle()
    results = [
        client.infer("gate-eager", _inputs("gate", rows, columns), datatype="BF16")
        for rows, columns in sizes
    ]
    after = service.scrape_idle()
    batches = sum(-(-rows // MAX_BATCH_ROWS) for rows, _ in sizes)
    elements = sum(rows * columns for rows, columns in sizes)
    model = {"model": "gate-eager"}
    growth = {
        name: _growth(before, after, f"gatefuse_{name}", **model)
        for name in (
            "request_rows_count",
            "request_rows_sum",
            "batch_rows_count",
            "batch_rows_sum",
            "batch_padding_rows_total",
            "kernel_launches_total",
        )
    }
    assert growth == {
        "request_rows_count": len(sizes),
        "request_rows_sum": sum(rows for rows, _ in sizes),
        "batch_rows_count": batches,
        "batch_rows_sum": sum(rows for rows, _ in sizes),
        "batch_padding_rows_total": 0,
        "kernel_launches_total": 2 * batches,
    }
    # silu reads g and writes t, the product reads t and u and writes y, in float32.
    moved = {
        direction: _growth(
            before, after, "gatefuse_dram_bytes_modelled_total", direction=direction, **model
        )
        for direction in ("read", "write")
    }
    assert moved == {"read": 3 * 4 * elements, "write": 2 * 4 * elements}
    assert sum(result.cost.kernel_launches for result in results) == 2 * batches
    assert sum(result.cost.bytes_moved for result in results) == sum(moved.values())
    hops = {
        hop: _growth(before, after, "gatefuse_transfer_bytes_total", hop=hop)
        for hop in ("grpc_in", "grpc_out", "to_replica", "from_replica")
    }
    # Two inputs and one output: two bytes an element on the wire, four in the slot.
    assert hops == {
        "grpc_in": 2 * 2 * elements,
        "grpc_out": 2 * elements,
        "to_replica": 2 * 4 * elements,
        "from_replica": 4 * elements,
    }
