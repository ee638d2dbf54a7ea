"""Which chains are measured, and what they are held to."""

from __future__ import annotations

import pytest
from tests.kernels.bench.chains.examples import chain_of, result

from gatefuse_kernels.bench.chains import cases
from gatefuse_kernels.bench.chains.cases import CHAINS, OWN, Chain
from gatefuse_kernels.bench.chains.options import ChainOptions
from gatefuse_kernels.bench.chains.results import COMPILED, EAGER
from gatefuse_kernels.bench.results import PeerResult, State
from gatefuse_kernels.expression import parse_program
from gatefuse_kernels.shapes import DType
from gatefuse_kernels.traffic import passes, program_traffic


def met(name: str, ours_us: float, **options: object) -> dict[str, bool]:
    # The options are `result`'s own, of several types; a dict cannot say which is which.
    found = result(name, ours_us, **options)  # type: ignore[arg-type]
    return {verdict.line: verdict.is_met for verdict in found.verdicts}


def test_the_chain_of_twelve_has_twelve_and_the_tensors_of_the_chain_of_one() -> None:
    long = chain_of("twelve_ops")
    assert long.shorter is not None
    short = parse_program(long.shorter, {})
    assert (len(long.program.steps), len(short.steps)) == (12, 1)
    assert (long.program.inputs, long.program.outputs) == (short.inputs, short.outputs)
    assert short == chain_of("one_op").program


def test_the_seven_trip_chain_takes_seven_trips() -> None:
    (chain,) = (chain for chain in CHAINS if chain.eager_gain is not None)
    trips = {
        backend: passes(program_traffic(chain.program, backend, 2, cases.COLUMNS, DType.FP32))
        for backend in ("eager", "fused")
    }
    assert trips == {"eager": 7, "fused": 3}


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("scale_shift", set(DType)),
        ("silu_gate", set(DType)),
        ("gelu_tanh", set(DType)),
        ("gelu_residual", {DType.FP32}),
        ("one_op", set()),
    ],
)
def test_who_is_held_to_the_copy(name: str, dtypes: set[DType]) -> None:
    held = {dtype for dtype in DType if "copy bandwidth" in met(name, 300.0, dtype=dtype)}
    assert held == dtypes


def test_limits_are_met_at_their_edge() -> None:
    # The fastest copy takes 285 us, torch.compile 300, eager 640.
    good = met("gelu_residual", 300.0)
    assert good == {
        "copy bandwidth": True,
        "torch.compile": True,
        "gain on eager": True,
        "launches": True,
    }
    assert met("gelu_residual", 301.0)["copy bandwidth"] is False
    assert met("gelu_residual", 302.9)["torch.compile"] is True
    assert met("gelu_residual", 303.1)["torch.compile"] is False
    assert met("gelu_residual", 320.1)["gain on eager"] is False
    assert met("gelu_residual", 300.0, launches=2)["launches"] is False


def test_a_longer_chain_is_held_to_the_shorter_one() -> None:
    assert met("twelve_ops", 210.0, shorter_us=200.0)["shorter chain"] is True
    assert met("twelve_ops", 210.1, shorter_us=200.0)["shorter chain"] is False


def test_a_peer_that_did_not_run_holds_nobody() -> None:
    peers = {
        COMPILED: PeerResult(State.FAILED, "OutOfMemoryError"),
        EAGER: PeerResult(State.NOT_RUN),
    }
    assert met("gelu_residual", 290.0, peers=peers) == {"copy bandwidth": True, "launches": True}
    assert result("gelu_residual", 290.0, peers=peers).fastest_peer is None


def test_the_command_repeats_the_run() -> None:
    own = Chain(OWN, "x * w - 1", vectors=("w",))
    options = ChainOptions((chain_of("one_op"), own), (DType.FP16,), 5000, 20, 9)
    assert options.command == (
        "gatefuse bench elementwise --chains one_op --expression 'x * w - 1' --vectors w "
        "--dtype fp16 --elements 5000 --rounds 20"
    )


@pytest.mark.parametrize(("elements", "rows"), [(1, 1), (16384, 1), (40000, 2)])
def test_whole_rows(elements: int, rows: int) -> None:
    assert cases.rows_for(elements) == rows
